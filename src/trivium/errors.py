"""Errors that a user can mend.

Every message says what was given, what is allowed and what to do, in one or two sentences. The
command line prints it without a traceback and exits with code 1. A broken invariant of ours is an
`assert`, never one of these.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator

_LONGEST_MESSAGE = 4000


class TriviumError(ValueError):
    """Base of every error that the user's input can cause.

    Whatever names are in its message, it does not fill the terminal, and can be printed.
    """

    def __init__(self, message: str) -> None:
        printable = message.encode(errors="backslashreplace").decode()  # of lone surrogates
        super().__init__(shorten(printable, _LONGEST_MESSAGE))


class DataError(TriviumError):
    """A text source, a shard folder or a split that cannot be used."""


class TokenizerError(TriviumError):
    """A tokenizer that cannot be trained, loaded or used as asked."""


class SpecError(TriviumError):
    """A model description that contradicts itself, or input the model cannot take."""


class RecipeError(TriviumError):
    """An unknown key or an impossible value in a recipe or in `--set`."""


OLD_RUN = (
    "it was made by version 0.2, whose models this version does not read. Train again, or export "
    "the model with version 0.2 (trivium export) and use the exported folder."
)
"""What a file of version 0.2 meets."""


class CheckpointError(TriviumError):
    """A run or checkpoint that is missing, damaged or does not fit."""


class TrainingError(TriviumError):
    """Training that cannot go on, such as a loss that is not finite."""


class MissingExtraError(TriviumError):
    """An optional dependency that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs an optional part. Install it in the folder of Trivium's code: `make "
            f"setup EXTRAS={extra}`, or in an environment of your own `pip install '.[{extra}]'`."
        )


@contextlib.contextmanager
def importing_extra(what: str, extra: str) -> Iterator[None]:
    """Raise MissingExtraError if an import inside fails: `what` needs the optional part `extra`."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known name that is spelled most like another, or else begins with it; [] without one.

    >>> nearest("act", ["gated", "activation"])
    ['activation']
    """
    known = sorted(filter(None, known))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return close or [one for one in known if name and one.startswith(name)][:1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion to append to an error message, empty when nothing is near.

    >>> did_you_mean("bert-smal", ["bert-small", "gpt2"])
    ' Did you mean "bert-small"?'
    """
    return "".join(f' Did you mean "{shorten(near, 100)}"?' for near in nearest(name, known))


def did_you_mean_size(name: str, known: Iterable[str]) -> str:
    """`did_you_mean` among sizes of models whose family the name nearly begins with.

    >>> known = ["llama-7b", "bert-mini"]
    >>> did_you_mean_size("lama-7b", known), did_you_mean_size("pegasus-mini", known)
    (' Did you mean "llama-7b"?', '')
    """
    name = name.lower()

    def is_alike(other: str) -> bool:
        family = other.partition("-")[0]
        return difflib.SequenceMatcher(None, family, name[: len(family)]).ratio() > 0.7

    return did_you_mean(name, filter(is_alike, known))


def shorten(text: str, length: int = 60) -> str:
    """A text for a message: the beginning of a long one.

    >>> shorten("a long story", 8)
    'a lon...'
    """
    return text if len(text) <= length else f"{text[: length - 3]}..."
