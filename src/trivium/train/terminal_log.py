"""The log of a run in the terminal: a progress line and a table of evaluations.

On a terminal, the table has a row per evaluation, and the progress line below the table is
rewritten in place. In a log file, nothing can be rewritten, and progress is printed as rows of the
same table. The main metric of a task is known only after the first evaluation; the table then gets
a column for this metric.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.language_model import LanguageModel
from trivium.messages import display_width, padded, translated
from trivium.progress import ProgressLine, format_duration
from trivium.train.callback import Callback
from trivium.train.loader import GlobalBatch
from trivium.train.train_config import TrainConfig


@dataclass
class TerminalLog(Callback):
    """A callback that prints the progress and the metrics of a run.

    Args:
        log: the progress line.
        config: the settings of logging and evaluation.
        metadata: the metadata in `run.json`, such as the unigram baseline, the FLOPs per token and
            the peak FLOP/s of the device.
        metric: a function that returns the name of the task's main metric. The name is "" until the
            first evaluation, and None if the run has no such metric.
        shows_heading: whether the heading of the table is printed before the first step.
    """

    log: ProgressLine
    config: TrainConfig
    metadata: Mapping[str, Any]
    metric: Callable[[], str | None] = lambda: None
    shows_heading: bool = True
    _progress: deque[tuple[int, float]] = field(
        default_factory=lambda: deque(maxlen=2), init=False
    )  # of the last two steps, since a log record may be read after the next step
    _train_loss: float | None = field(default=None, init=False)
    _heading: str = field(default="", init=False)
    _measured: list[str] = field(default_factory=list, init=False)
    _start: tuple[float, float] | None = field(default=None, init=False)

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Print the heading of the table before the first step, which may take a while."""
        if self.shows_heading and self.metric() != "":
            self.print_heading()

    def on_step(self, step: int, progress: float) -> None:
        """Update the progress line."""
        self._progress.append((step, progress))
        self.show_progress(step, progress)

    def on_log(self, record: dict[str, Any]) -> None:
        """Show a log record in the progress line. If the record has a warning, print it."""
        self._update_progress_line(record, dict(self._progress)[record["step"]])
        self._print_warning(record)

    def on_evaluate(self, record: dict[str, Any], lm: LanguageModel) -> None:
        """Print the results of an evaluation as a table row. If there is a warning, print it."""
        self._print_row(record)
        self._print_warning(record)

    def show_progress(self, step: int, progress: float) -> str:
        """Rewrite the progress line. Returns a text with the fraction done and the time left.

        The most important values come first, since a narrow terminal truncates the line. The
        estimate of the remaining time excludes the first step, which may include compilation.
        """
        left = self._estimate_seconds_left(progress)
        done = translated("progress.done", share=progress)
        if left is not None:
            done += translated("progress.time_left", time=format_duration(left))
        self.log.update("  ".join((_step_label(step), done, *self._measured)))
        return done

    def _print_warning(self, record: Mapping[str, Any]) -> None:
        """Print the warning in a record, if the record has one."""
        if "warning" in record:
            self.log.warn(f"{_step_label(record['step'])}: {record['warning']}")

    def _update_progress_line(self, record: dict[str, Any], progress: float) -> None:
        """Update the progress line with the loss and throughput of a log record.

        In a log file, also print a table row: for every record if `train.log_every` is set, or else
        every 20 seconds.
        """
        self._train_loss = record["train_loss"]
        rate = record["tokens_per_second"]
        self._measured = [translated("progress.loss", loss=record["train_loss"])]
        if (unigram := self.metadata.get("unigram_loss")) is not None:
            self._measured.append(f"unigram {unigram:.2f}")
        self._measured.append(translated("progress.tokens_per_second", rate=rate))
        if peak := self.metadata["peak_flops"]:
            share = rate * self.metadata["flops_per_token"] / peak
            self._measured.append(translated("progress.of_peak", share=share))
        done = self.show_progress(record["step"], progress)
        evaluated = progress >= 1.0 or record["step"] % (self.config.eval_every or 1) == 0
        every = self.config.log_every is not None and not self.log.console.is_terminal
        if (self.log.log_is_due or every) and not evaluated:
            if self.metric() == "":  # the table begins when its columns are known
                self.log.print_line("  ".join((_step_label(record["step"]), done, *self._measured)))
            else:
                self._print_row(record, done)

    def print_heading(self) -> list[str]:
        """Print the heading of the table, unless the last printed heading is the same.

        Returns the column headings, except for that of the step column.
        """
        columns = [translated("report.training_loss"), translated("report.validation_loss")]
        columns = [padded(name, width, right=True) for name, width in zip(columns, (13, 15))]
        if metric := self.metric():
            part = self.metadata.get("eval_examples", 0) < self.metadata.get("valid_examples", 0)
            measured = self.metadata["metric_examples"] if part else 0
            note = translated("progress.metric_examples", count=measured) if part else ""
            columns.append(padded(metric + note, 10, right=True))
        heading = " | ".join((padded(translated("report.step"), 8, right=True), *columns))
        if heading != self._heading:
            self._heading = heading
            self.log.print_line(heading)
        return columns

    def _print_row(self, record: dict[str, Any], note: str = "") -> None:
        """Print a table row with the losses and the main metric of a record, followed by `note`."""
        values = self._train_loss, record.get("valid_loss"), record.get(f"valid_{self.metric()}")
        cells = ("-" if value is None else f"{value:.4f}" for value in values)
        row = (cell.rjust(display_width(name)) for name, cell in zip(self.print_heading(), cells))
        self.log.print_line(" | ".join((f"{record['step']:>8}", *row)) + (note and f"   {note}"))

    def _estimate_seconds_left(self, progress: float) -> float | None:
        """Estimate the time until the end of the budget, in seconds.

        The estimate uses the speed since the first step. Returns None at the first step.
        """
        if self._start is None:
            self._start = time.monotonic(), progress
        start, before = self._start
        done = progress - before
        return (time.monotonic() - start) / done * (1.0 - progress) if done > 0 else None


def _step_label(step: int) -> str:
    """Return the translated label of a step, such as "step 10"."""
    return translated("progress.step", step=step)
