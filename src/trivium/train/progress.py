"""What a run says while it works: a table of evaluations and a live line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

# Seconds between status lines where the output is no terminal.
_PLAIN_EVERY = 20.0


class ProgressLine:
    """One line that is rewritten in place, or a plain line now and then."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._printed = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the line while inside."""
        if not self.console.is_terminal:
            yield
            return
        with Live(Text(""), console=self.console, transient=True, refresh_per_second=4) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def update(self, text: str) -> None:
        """Rewrite the line."""
        if self._live is not None:
            self._live.update(Text(text, style="dim"))
        elif time.monotonic() - self._printed > _PLAIN_EVERY:
            self._printed = time.monotonic()
            self.say(text)

    def say(self, text: str = "", style: str | None = None) -> None:
        """Print a line that stays."""
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


class TrainingTable:
    """The table `Step | Training loss | Validation loss` and the live line under it.

    Args:
        line: where to write.
        unigram_loss: nats of guessing by word frequency; the live line measures against it.
        flops_per_token: to train on one token.
        peak_flops: FLOP/s the device can do, or None where it is not known.

    `metric`, once it is set, is what a task is judged by: a column of its own, `valid_METRIC` in
    records.
    """

    def __init__(
        self,
        line: ProgressLine,
        *,
        unigram_loss: float | None,
        flops_per_token: float,
        peak_flops: float | None,
        seconds_left: Callable[[float], float],
    ) -> None:
        self.line = line
        self.metric: str | None = None
        self.unigram_loss = unigram_loss
        self.flops_per_token, self.peak_flops = flops_per_token, peak_flops
        self.seconds_left = seconds_left
        self._train_loss: float | None = None
        self._headed = False

    def logged(self, record: dict[str, Any], progress: float) -> None:
        """Rewrite the live line."""
        self._train_loss = record["train_loss"]
        rate = record["tokens_per_second"]
        parts = [f"step {record['step']:,}", f"loss {record['train_loss']:.3f}"]
        if self.unigram_loss is not None:
            parts.append(f"word frequency {self.unigram_loss:.2f}")
        parts.append(f"{rate:,.0f} tokens/s")
        if self.peak_flops:
            parts.append(f"{rate * self.flops_per_token / self.peak_flops:.0%} of peak")
        parts.append(f"{progress:.0%} done, {duration(self.seconds_left(progress))} left")
        self.line.update("  ".join(parts))

    def evaluated(self, record: dict[str, Any]) -> None:
        """Add a row to the table."""
        if not self._headed:
            self._headed = True
            last = f" | {self.metric:>10}" if self.metric else ""
            self.line.say(f"{'Step':>8} | {'Training loss':>13} | {'Validation loss':>15}{last}")
        train = f"{self._train_loss:.4f}" if self._train_loss is not None else "-"
        last = f" | {record[f'valid_{self.metric}']:>10.4f}" if self.metric else ""
        self.line.say(f"{record['step']:>8} | {train:>13} | {record['valid_loss']:>15.4f}{last}")


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42), duration(754), duration(8000)
    ('42s', '12m34s', '2h13m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
