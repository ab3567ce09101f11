"""The result of `pretrain` and `finetune`: the folder of the run and its results."""

from __future__ import annotations

from typing import Any

from trivium.errors import TriviumError
from trivium.messages import padded, translated
from trivium.report import format_summary, read_run
from trivium.train.run_folder import RunFolder


class Run(RunFolder):
    """The folder of a run, with its results; `repr(run)` is the summary of `trivium report`.

        run = trivium.finetune("classification", model="runs/bert", data=rows, out="runs/reviews")
        run.metrics["accuracy"]
        pandas.DataFrame(run.history).plot("step", ["train_loss", "valid_loss"])
        lm = trivium.load(run.path)

    The results are read from the files of the folder on every access.
    """

    @property
    def metrics(self) -> dict[str, float]:
        """The validation results of the model that the run keeps, by name.

        The results of labelled runs are metrics from 0 to 1, with the main metric first, and `loss`
        in nats. For text, `loss` is in nats per token. Empty if there are no validation data.

        Raises CheckpointError if the folder has no run, or if nothing was measured yet.
        """
        return read_run(self.path).validation_metrics

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of the run in order, as in `metrics.jsonl`.

        Training records contain `train_loss`, and evaluation records contain `valid_loss` and
        metrics. All records contain `step`, `tokens` and `seconds` since the start.
        """
        return self.read_metrics()

    def __repr__(self) -> str:
        """Return the summary of the run, or its path if nothing was measured yet."""
        try:
            summary = format_summary(read_run(self.path))
        except TriviumError:
            return f"Run({str(self.path)!r})"
        return f"{summary}\n{padded(translated('label.run'), 16)}  {self.path}"
