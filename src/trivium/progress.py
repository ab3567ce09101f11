"""Show progress on a terminal or in a log, format numbers and durations, and handle signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trivium.messages import padded, translated

# The seconds between log lines if the output is not a terminal.
_LOG_EVERY = 20.0
# The seconds without an update after which the live line shows the time since its last update.
_STANDING = 5.0
_LABEL_WIDTH = 11


class ProgressLine:
    """A line of progress. A terminal shows it in place; a log gets a line at most every 20 s.

    The line is written to standard error unless a `console` is given.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._text, self._updated = "", time.monotonic()
        self._printed = time.monotonic()

    def running(self) -> AbstractContextManager[Any]:
        """Return a context manager that displays the line on a terminal while the block runs."""
        if not self.console.is_terminal:
            return nullcontext()
        return Live(
            get_renderable=self._render, console=self.console, transient=True, refresh_per_second=4
        )

    def update(self, text: str) -> None:
        """Set the text of the progress line. A terminal displays it; a log does not."""
        self._text, self._updated = text, time.monotonic()

    def update_or_log(self, text: str) -> None:
        """Set the text of the progress line, and print it to a log if `log_is_due` is True."""
        self.update(text)
        if self.log_is_due:
            self.print_line(text)

    @property
    def log_is_due(self) -> bool:
        """Whether the output is a log in which nothing has been printed for 20 seconds."""
        return not self.console.is_terminal and time.monotonic() - self._printed > _LOG_EVERY

    def print_line(self, text: str = "", style: str | None = None) -> None:
        """Print a permanent line to the terminal or the log."""
        self._printed = time.monotonic()
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def print_message(self, label: str, identifier: str, /, **values: object) -> None:
        """Print the message `identifier` in the user's language, after a translated label."""
        self.print_line(labelled(label, translated(identifier, **values)))

    def warn(self, message: str) -> None:
        """Print a warning in yellow, after the translated label "warning"."""
        self.print_line(labelled("warning", message), style="yellow")

    def _render(self) -> Text:
        """Return the text of the progress line, plus the time since its last update if over 5 s."""
        idle = time.monotonic() - self._updated
        waiting = f"  ({format_duration(idle)})" if self._text and idle > _STANDING else ""
        return Text(self._text + waiting, style="dim", no_wrap=True, overflow="ellipsis")


def labelled(label: str, text: str) -> str:
    """Put a translated label before a text. The label is a key of the message table `[label]`.

    If the label is empty, the text is indented instead, as a continuation of the previous line.
    """
    return padded(translated(f"label.{label}") if label else "", _LABEL_WIDTH) + text


def format_count(number: int, noun: str) -> str:
    """Return a number and its unit in the user's language, in the singular or the plural.

    `noun` is the singular of the unit, a key of the message table `[unit]`.

    >>> format_count(1, "step"), format_count(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{number:,} {translated(f'unit.{noun}' if number == 1 else f'unit.{noun}s')}"


def format_duration(seconds: float) -> str:
    """Format a duration as seconds, as minutes and seconds, or as hours and minutes.

    >>> format_duration(42), format_duration(754), format_duration(8000)
    ('42s', '12m34s', '2h13m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


@contextmanager
def handle_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM with `handler` while the `with` block runs.

    No handler is set in threads other than the main thread. SIGINT is also handled in a background
    job, although a shell starts such jobs with SIGINT ignored.
    """
    try:
        before = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread can set signal handlers
        yield
        return
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
