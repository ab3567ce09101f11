"""How far long work is: a number on the terminal, which the result replaces."""

from __future__ import annotations

import sys
import time

_SECONDS = 0.2


class Counting:
    """Shows "N things" on a terminal's stderr now and then; nothing where it is no terminal."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._shown, self._next = False, 0.0

    def __call__(self, count: int) -> None:
        """Show a count."""
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        print(f"\r{count:,} {self.what}", end="", file=sys.stderr, flush=True)
        self._shown, self._next = True, now + _SECONDS

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
            self._shown = False
