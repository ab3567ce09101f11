"""Callbacks that write the records of a run to files: `metrics.jsonl` and TensorBoard events."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.errors import require_extra
from trivium.files import sync
from trivium.language_model import LanguageModel
from trivium.train.callback import Callback
from trivium.train.loader import GlobalBatch
from trivium.train.run_folder import RunFolder

_COUNTS = ("step", "tokens", "seconds")  # entries of every record that are not metrics


@dataclass
class MetricsFile(Callback):
    """A callback that appends every record to `metrics.jsonl` in the run folder."""

    run: RunFolder

    def on_log(self, record: dict[str, Any]) -> None:
        """Append a log record to the file."""
        self.run.append_metrics(record)

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Append an evaluation record to the file."""
        self.run.append_metrics(record)

    def on_save(self, folder: Path) -> None:
        """Flush the file to disk, so that no record before the checkpoint can be lost."""
        sync(self.run.metrics_file)


@dataclass
class TensorBoard(Callback):
    """A callback that writes the metrics of every record as TensorBoard events.

    Args:
        folder: the folder for the event files.
    """

    folder: Path
    _events: Any = field(default=None, init=False)

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Open the event file. Raises MissingExtraError if TensorBoard is not installed."""
        with require_extra("train.tensorboard = true", "tensorboard"):
            from torch.utils.tensorboard.writer import SummaryWriter
        self._events = SummaryWriter(self.folder)

    def on_log(self, record: dict[str, Any]) -> None:
        """Write the metrics of a log record."""
        for name, value in numeric_metrics(record).items():
            self._events.add_scalar(name, value, record["step"])

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Write the metrics of an evaluation record."""
        self.on_log(record)

    def on_end(self, error: BaseException | None) -> None:
        """Flush and close the event file."""
        if self._events is not None:
            self._events.close()


def numeric_metrics(record: dict[str, Any]) -> dict[str, float]:
    """Return the numeric entries of a record, except for `step`, `tokens` and `seconds`."""
    return {
        name: value
        for name, value in record.items()
        if name not in _COUNTS and isinstance(value, int | float)
    }
