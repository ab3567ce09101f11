"""Errors that a user can fix, and suggestions for misspelt names.

Every message names the input, the allowed values and the remedy, in one or two sentences. The
command line prints the message without a traceback and exits with code 1. Broken invariants in
Trivium itself are `assert`s, not these errors.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator

_LONGEST_MESSAGE = 4000


class TriviumError(ValueError):
    """Base class of the errors that a user's input can cause.

    Messages are cut to 4,000 characters. Lone surrogates, which cannot be printed, are escaped.
    """

    def __init__(self, message: str) -> None:
        printable = message.encode(errors="backslashreplace").decode()  # escapes lone surrogates
        super().__init__(shorten(printable, _LONGEST_MESSAGE))


class DataError(TriviumError):
    """A text source, a folder of shards or a split cannot be used."""


class TokenizerError(TriviumError):
    """A tokenizer cannot be trained, loaded or used as requested."""


class SpecError(TriviumError):
    """A model spec contradicts itself, or the model does not support an input."""


class RecipeError(TriviumError):
    """A recipe or `--set` contains an unknown key or an invalid value."""


OLD_VERSION_MESSAGE = (
    "it was made by version 0.2, whose models this version does not read. Train again, or export "
    "the model with version 0.2 (trivium export) and use the exported folder."
)
"""The end of the error message for files that version 0.2 wrote."""


class CheckpointError(TriviumError):
    """A run, model or checkpoint is missing, damaged or incompatible."""


class TrainingError(TriviumError):
    """Training cannot continue, for example because the loss is not finite."""


class MissingExtraError(TriviumError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        """Create the message: `what` needs the extra `extra` of the package."""
        super().__init__(
            f"{what} needs an optional part. Install it in the folder of Trivium's code: `make "
            f"setup EXTRAS={extra}`, or in an environment of your own `pip install '.[{extra}]'`."
        )


@contextlib.contextmanager
def importing_extra(what: str, extra: str) -> Iterator[None]:
    """Raise MissingExtraError if an import in the block fails: `what` needs the extra `extra`."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


def nearest_name(name: str, known: Iterable[str]) -> list[str]:
    """Return a list with the most similar known name, or one that starts with `name`, or [].

    >>> nearest_name("act", ["gated", "activation"])
    ['activation']
    """
    known = sorted(filter(None, known))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return close or [one for one in known if name and one.startswith(name)][:1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to an error message, or "" if no known name is similar.

    >>> did_you_mean("bert-smal", ["bert-small", "gpt2"])
    ' Did you mean "bert-small"?'
    """
    return "".join(f' Did you mean "{shorten(near, 100)}"?' for near in nearest_name(name, known))


def did_you_mean_size(name: str, known: Iterable[str]) -> str:
    """Return `did_you_mean` among known model names whose family is similar to that of `name`.

    >>> known = ["llama-7b", "bert-mini"]
    >>> did_you_mean_size("lama-7b", known), did_you_mean_size("pegasus-mini", known)
    (' Did you mean "llama-7b"?', '')
    """
    name = name.lower()

    def is_alike(other: str) -> bool:
        """Return whether the family of a known name is similar to the start of `name`."""
        family = other.partition("-")[0]
        return difflib.SequenceMatcher(None, family, name[: len(family)]).ratio() > 0.7

    return did_you_mean(name, filter(is_alike, known))


def shorten(text: str, length: int = 60) -> str:
    """Return a text cut to at most `length` characters, for an error message.

    >>> shorten("a long story", 8)
    'a lon...'
    """
    return text if len(text) <= length else f"{text[: length - 3]}..."
