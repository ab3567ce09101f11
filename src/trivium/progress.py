"""Show what is being done, on a terminal or in a log: a live line, numbers, times; and signals."""

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

# Seconds between status lines where the output is no terminal.
_LOG_EVERY = 20.0
# Seconds after which the live line says for how long it has not changed.
_STANDING = 5.0
_LABEL_WIDTH = 11


class ProgressLine:
    """One line that is rewritten in place; where the output is no terminal, one now and then.

    It is shown on standard error unless a console is set.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._text, self._updated = "", time.monotonic()
        self._printed = time.monotonic()

    def running(self) -> AbstractContextManager[Any]:
        """Show the line while inside."""
        if not self.console.is_terminal:
            return nullcontext()
        return Live(
            get_renderable=self._line, console=self.console, transient=True, refresh_per_second=4
        )

    def update(self, text: str) -> None:
        """Rewrite the line. Does nothing where the output is no terminal."""
        self._text, self._updated = text, time.monotonic()

    def show(self, text: str) -> None:
        """Rewrite the line; where the output is no terminal, print it if nothing was lately."""
        self.update(text)
        if self.log_is_due:
            self.say(text)

    @property
    def log_is_due(self) -> bool:
        """Whether progress is to be printed: the output is no terminal, and nothing was lately."""
        return not self.console.is_terminal and time.monotonic() - self._printed > _LOG_EVERY

    def say(self, text: str = "", style: str | None = None) -> None:
        """Print a line that stays."""
        self._printed = time.monotonic()
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def tell(self, label: str, identifier: str, /, **values: object) -> None:
        """Print a label and a text in the reader's language: see `labelled` and `translated`."""
        self.say(labelled(label, translated(identifier, **values)))

    def warn(self, message: str) -> None:
        """Print a warning."""
        self.say(labelled("warning", message), style="yellow")

    def _line(self) -> Text:
        """What the terminal shows, cut at its width."""
        standing = time.monotonic() - self._updated
        waiting = f"  ({short_duration(standing)})" if self._text and standing > _STANDING else ""
        return Text(self._text + waiting, style="dim", no_wrap=True, overflow="ellipsis")


def labelled(label: str, text: str) -> str:
    """Return a line of a run: a label of `[label]` in the reader's language, and a text.

    Without a label the text belongs to the line before.
    """
    return padded(translated(f"label.{label}") if label else "", _LABEL_WIDTH) + text


def counted(number: int, noun: str) -> str:
    """Return a number with its unit, which `[unit]` has in the singular and the plural.

    >>> counted(1, "step"), counted(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{number:,} {translated(f'unit.{noun}' if number == 1 else f'unit.{noun}s')}"


def short_duration(seconds: float) -> str:
    """Seconds in the largest fitting units.

    >>> short_duration(42), short_duration(754), short_duration(8000)
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
    """SIGINT and SIGTERM call `handler`, also in a script's `command &`, which ignores SIGINT."""
    try:
        before = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which alone can handle signals
        yield
        return
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
