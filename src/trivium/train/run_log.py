"""What a run prints and logs: a live line, a table of evaluations, metrics, TensorBoard events.

On a terminal the table has a row per evaluation, and the live line below it is rewritten in place.
In a log file, where nothing can be rewritten, progress takes rows of the same table. The first
evaluation of a task names its metric: a new column, with a new heading.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.errors import MissingExtraError
from trivium.progress import ProgressLine, short_duration
from trivium.train.health import LossMonitor
from trivium.train.run_folder import RunFolder


@dataclass
class RunLog:
    """Writes records to `metrics.jsonl` and TensorBoard, and shows them.

    Args:
        run: where metrics are written.
        line: where progress is shown.
        tensorboard: also write TensorBoard events.
        unigram_loss: nats per token of the unigram baseline, which the live line shows.
        flops_per_token: to train on one token; `peak_flops`: FLOP/s of the device, if known.
        eval_every: steps between evaluations, whose rows follow.
        every_line: show every log line also where the output is no terminal.
        metric: the main metric of a task, a column of its own, `valid_METRIC` in records; "" until
            the first evaluation, which names it; None where there is none.
        metric_note: shown after its name in the heading.
        monitor: warns of losses that stand still or rise; its warnings are in the records.
    """

    run: RunFolder
    line: ProgressLine
    tensorboard: bool
    unigram_loss: float | None
    flops_per_token: float
    peak_flops: float | None
    eval_every: int
    every_line: bool = False
    metric: str | None = None
    metric_note: str = ""
    monitor: LossMonitor | None = None
    _train_loss: float | None = field(default=None, init=False)
    _heading: str = field(default="", init=False)
    _measured: list[str] = field(default_factory=list, init=False)
    _start: tuple[float, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.every_line = self.every_line and not self.line.console.is_terminal
        self._events = _event_writer(self.run.path / "tensorboard") if self.tensorboard else None
        if self.monitor is not None:
            for record in self.run.read_metrics():  # what a resumed run has warned of
                self.monitor.warning(record)

    def show_progress(self, step: int, progress: float) -> str:
        """Rewrite the live line, what matters most first: a narrow terminal cuts its end.

        Returns what is done. The first step, which may compile, is left out of its estimate.
        """
        left = self._seconds_left(progress)
        done = f"{progress:.0%} done" + ("" if left is None else f", {short_duration(left)} left")
        self.line.update("  ".join((f"step {step:,}", done, *self._measured)))
        return done

    def write(self, record: dict[str, Any], progress: float) -> None:
        """Log one record, and show it."""
        warning = self.monitor.warning(record) if self.monitor else None
        self.run.append_metrics(record | ({"warning": warning} if warning else {}))
        if self._events is not None:
            for name, value in record.items():
                if name not in ("step", "tokens", "seconds"):
                    self._events.add_scalar(name, value, record["step"])
        if "train_loss" in record:
            self._show_step(record, progress)
        else:
            self._show_row(record)
        if warning:
            self.line.warn(f"step {record['step']:,}: {warning}")

    def close(self) -> None:
        """Flush what is left."""
        if self._events is not None:
            self._events.close()

    def _show_step(self, record: dict[str, Any], progress: float) -> None:
        self._train_loss = record["train_loss"]
        rate = record["tokens_per_second"]
        self._measured = [f"loss {record['train_loss']:.3f}"]
        if self.unigram_loss is not None:
            self._measured.append(f"unigram {self.unigram_loss:.2f}")
        self._measured.append(f"{rate:,.0f} tokens/s")
        if self.peak_flops:
            self._measured.append(f"{rate * self.flops_per_token / self.peak_flops:.0%} of peak")
        done = self.show_progress(record["step"], progress)
        evaluated = progress >= 1.0 or record["step"] % self.eval_every == 0
        if (self.line.log_is_due or self.every_line) and not evaluated:
            if self.metric == "":  # the table begins when its columns are known
                self.line.say("  ".join((f"step {record['step']:,}", done, *self._measured)))
            else:
                self._show_row(record, done)

    def show_heading(self) -> list[str]:
        """Print the heading of the table where it is new; its columns after the first."""
        columns = [f"{'Training loss':>13}", f"{'Validation loss':>15}"]
        if self.metric:
            columns.append(f"{self.metric + self.metric_note:>10}")
        heading = " | ".join((f"{'Step':>8}", *columns))
        if heading != self._heading:
            self._heading = heading
            self.line.say(heading)
        return columns

    def _show_row(self, record: dict[str, Any], note: str = "") -> None:
        values = self._train_loss, record.get("valid_loss"), record.get(f"valid_{self.metric}")
        cells = ("-" if value is None else f"{value:.4f}" for value in values)
        row = (cell.rjust(len(name)) for name, cell in zip(self.show_heading(), cells))
        self.line.say(" | ".join((f"{record['step']:>8}", *row)) + (note and f"   {note}"))

    def _seconds_left(self, progress: float) -> float | None:
        """Seconds to the end of the budget at the speed since the first step, None for that."""
        if self._start is None:
            self._start = time.monotonic(), progress
        start, before = self._start
        done = progress - before
        return (time.monotonic() - start) / done * (1.0 - progress) if done > 0 else None


def _event_writer(folder: Path) -> Any:
    """TensorBoard's writer. Raises MissingExtraError where it is not installed."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise MissingExtraError("train.tensorboard = true", "tensorboard") from None
    return SummaryWriter(folder)
