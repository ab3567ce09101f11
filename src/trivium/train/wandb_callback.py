"""A callback that sends the metrics of a run to Weights & Biases."""

from __future__ import annotations

from typing import Any

from trivium.errors import require_extra
from trivium.language_model import LanguageModel
from trivium.train.callback import Callback
from trivium.train.loader import GlobalBatch
from trivium.train.trackers import numeric_metrics


class WandbCallback(Callback):
    """Sends the metrics of a run to Weights & Biases.

    The callback needs the extra `wandb`. It sends numbers only, no texts or weights.

    Args:
        options: the arguments of `wandb.init`, such as `project`, `name` and `mode="offline"`. Set
            `id` and `resume="allow"` so that a resumed run continues its earlier curves.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, **options: Any) -> None:
        with require_extra("WandbCallback", "wandb"):
            import wandb  # pyright: ignore[reportMissingImports]
        self._wandb, self._options, self._run = wandb, options, None

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Start a W&B run with the model's spec as its configuration."""
        self._run = self._wandb.init(**{"config": {"spec": lm.spec.to_dict()}, **self._options})

    def on_log(self, record: dict[str, Any]) -> None:
        """Send the metrics of a log record."""
        self._wandb.log(numeric_metrics(record), step=record["step"])

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Send the metrics of an evaluation record."""
        self.on_log(record)

    def on_end(self, error: BaseException | None) -> None:
        """End the W&B run. It is marked as failed if an error or interruption ended training."""
        if self._run is not None:
            self._wandb.finish(exit_code=0 if error is None else 1)
