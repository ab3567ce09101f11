"""Callbacks that write the records of a run to files: `metrics.jsonl`, TensorBoard events."""

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

_COUNTS = ("step", "tokens", "seconds")  # entries of every record that are no measurements


@dataclass
class MetricsFile(Callback):
    """Appends every record to `metrics.jsonl` in the folder of the run."""

    run: RunFolder

    def on_log(self, record: dict[str, Any]) -> None:
        """Append the record."""
        self.run.append_metrics(record)

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Append the record."""
        self.run.append_metrics(record)

    def on_save(self, folder: Path) -> None:
        """Sync the file, so that a checkpoint after this callback has all records before it."""
        sync(self.run.metrics_file)


@dataclass
class TensorBoard(Callback):
    """Writes the numbers of every record as TensorBoard events to a folder."""

    folder: Path
    _events: Any = field(default=None, init=False)

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Open the file of events. Raises MissingExtraError where TensorBoard is not installed."""
        with require_extra("train.tensorboard = true", "tensorboard"):
            from torch.utils.tensorboard.writer import SummaryWriter
        self._events = SummaryWriter(self.folder)

    def on_log(self, record: dict[str, Any]) -> None:
        """Write the numbers of the record."""
        for name, value in measurements(record).items():
            self._events.add_scalar(name, value, record["step"])

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Write the numbers of the record."""
        self.on_log(record)

    def on_end(self, error: BaseException | None) -> None:
        """Flush the events and close their file."""
        if self._events is not None:
            self._events.close()


def measurements(record: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a record except `step`, `tokens` and `seconds`."""
    return {
        name: value
        for name, value in record.items()
        if name not in _COUNTS and isinstance(value, int | float)
    }
