"""TensorBoard events, for those who look there. Nothing is sent anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium.errors import MissingExtraError


class TensorBoard:
    """Writes every number of a metrics record under its name.

    Raises MissingExtraError where TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise MissingExtraError("train.tensorboard = true", "tensorboard") from None
        self.writer = SummaryWriter(folder)

    def write(self, record: dict[str, Any]) -> None:
        """Add one record of `metrics.jsonl`."""
        for name, value in record.items():
            if name not in ("step", "tokens", "seconds"):
                self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush what is left."""
        self.writer.close()
