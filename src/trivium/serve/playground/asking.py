"""What every question to a model goes through: checks before it, and one plain line if it fails."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import gradio as gr

from trivium.errors import TriviumError
from trivium.serve.playground.words import Words

MOST_CHARACTERS = 20_000
"""The longest text that is taken."""

_log = logging.getLogger(__name__)


def plainly(function: Callable[..., Any], words: Words) -> Callable[..., Any]:
    """The function, with its errors as one line for the reader instead of a traceback.

    What the user can mend is told as it is; of anything else the server's log has the traceback.
    """
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def pieces(*given: Any) -> Iterator[Any]:
            with _one_line(words):
                yield from function(*given)

        return pieces

    @functools.wraps(function)
    def whole(*given: Any) -> Any:
        with _one_line(words):
            return function(*given)

    return whole


def written(text: str | None, words: Words) -> str:
    """The text, if there is one of a length that is taken.

    Raises:
        TriviumError: no text, or too long a one.
    """
    if not text or not text.strip():
        raise TriviumError(words("error.empty"))
    if len(text) > MOST_CHARACTERS:
        raise TriviumError(words("error.long", count=len(text), limit=MOST_CHARACTERS))
    return text


def whole_number(value: float | None, least: int, most: int) -> int:
    """A number from a field as a whole one between two others; an empty field is the least."""
    return least if value is None else max(least, min(most, round(value)))


@contextmanager
def _one_line(words: Words) -> Iterator[None]:
    try:
        yield
    except TriviumError as error:
        raise _told(str(error), words) from None
    except (gr.Error, GeneratorExit):
        raise
    except Exception:
        _log.exception("the playground could not answer")
        raise _told(words("error.unexpected"), words) from None


def _told(message: str, words: Words) -> gr.Error:
    # The page takes the message for HTML.
    return gr.Error(escape(message), title=words("error"), print_exception=False)
