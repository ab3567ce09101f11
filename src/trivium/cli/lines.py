"""Texts given to a verb: arguments, or lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from trivium.errors import DataError


def texts_or_lines(given: Sequence[str] | None, *, blank: bool = False) -> Iterator[str]:
    """The texts given, else the lines of standard input; the blank ones too with `blank`.

    Raises:
        DataError: standard input is not UTF-8.
    """
    if given:
        yield from given
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input, line {number}: not UTF-8 (byte {error.start + 1} of the line)."
            ) from None
        if blank or text.strip():
            yield text
