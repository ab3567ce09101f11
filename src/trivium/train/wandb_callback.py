"""A callback that sends the metrics of a run to Weights & Biases."""

from __future__ import annotations

from typing import Any

from trivium.errors import require_extra
from trivium.language_model import LanguageModel
from trivium.train.callback import Callback
from trivium.train.loader import GlobalBatch
from trivium.train.trackers import measurements


class WandbCallback(Callback):
    """Logs the metrics of a run to Weights & Biases.

    It needs the extra `wandb`. Only the numbers of log lines and evaluations and the spec of the
    model are sent: no text, no weights.

    Args:
        options: the arguments of `wandb.init`, such as `project`, `name` and `mode="offline"`. `id`
            and `resume="allow"` continue the curves of a resumed run.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, **options: Any) -> None:
        with require_extra("WandbCallback", "wandb"):
            import wandb  # pyright: ignore[reportMissingImports]
        self._wandb, self._options, self._run = wandb, options, None

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Start a W&B run with the spec of the model as its configuration."""
        self._run = self._wandb.init(**{"config": {"spec": lm.spec.to_dict()}, **self._options})

    def on_log(self, record: dict[str, Any]) -> None:
        """Send the numbers of a log line."""
        self._wandb.log(measurements(record), step=record["step"])

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Send the numbers of an evaluation."""
        self.on_log(record)

    def on_end(self, error: BaseException | None) -> None:
        """Finish the W&B run, as failed if an error or an interruption ended training."""
        if self._run is not None:
            self._wandb.finish(exit_code=0 if error is None else 1)
