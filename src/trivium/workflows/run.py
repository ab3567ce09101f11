"""The result of `pretrain` and `finetune`: the run folder with metrics and history."""

from __future__ import annotations

from typing import Any

from trivium.errors import TriviumError
from trivium.messages import padded, translated
from trivium.report import format_summary, read_run
from trivium.train.run_folder import RunFolder


class Run(RunFolder):
    """A run folder with its results. `repr(run)` is the summary that `trivium report` prints.

        run = trivium.finetune("classification", model="runs/bert", data=rows, out="runs/reviews")
        run.metrics["accuracy"]
        pandas.DataFrame(run.history).plot("step", ["train_loss", "valid_loss"])
        lm = trivium.load(run.path)

    The results are read from the files in the folder on every access.
    """

    @property
    def metrics(self) -> dict[str, float]:
        """The validation metrics of the saved model, by name.

        A fine-tuned run has the metrics of its task, with the main metric first, and `loss` in
        nats. A run on raw text has `loss` in nats per token. The dict is empty if there is no
        validation data.

        Raises CheckpointError if the folder contains no run, or if nothing has been logged yet.
        """
        return read_run(self.path).validation_metrics

    @property
    def history(self) -> list[dict[str, Any]]:
        """The log records of the run in chronological order, as in `metrics.jsonl`.

        Training records contain `train_loss`, and evaluation records contain `valid_loss` and
        metrics. All records contain `step`, `tokens` and the `seconds` since the start of the run.
        """
        return self.read_metrics()

    def __repr__(self) -> str:
        """Return the summary of the run, or its path if nothing has been logged yet."""
        try:
            summary = format_summary(read_run(self.path))
        except TriviumError:
            return f"Run({self.name!r})"
        return f"{summary}\n{padded(translated('label.run'), 16)}  {self.name}"
