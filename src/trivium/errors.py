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
    """Base class of the errors that are caused by a user's input.

    Messages are cut to 4,000 characters. Lone surrogates, which cannot be printed, are escaped.
    """

    def __init__(self, message: str) -> None:
        printable = message.encode(errors="backslashreplace").decode()  # escapes lone surrogates
        super().__init__(shorten(printable, _LONGEST_MESSAGE))


class DataError(TriviumError):
    """A data source, a folder of shards or a dataset split cannot be used."""


class TokenizerError(TriviumError):
    """A tokenizer cannot be trained, loaded or used as requested."""


class SpecError(TriviumError):
    """A model spec is inconsistent, or the model does not support an input or operation."""


class RecipeError(TriviumError):
    """A recipe, or a `--set` option that changes it, has an unknown key or an invalid value."""


OLD_VERSION_MESSAGE = (
    "it was made by version 0.2, whose models this version does not read. Train again, or export "
    "the model with version 0.2 (trivium export) and use the exported folder."
)
"""The reason and the remedy in error messages about files that version 0.2 of Trivium wrote."""


class CheckpointError(TriviumError):
    """A run, model or checkpoint is missing, damaged or incompatible."""


class TrainingError(TriviumError):
    """Training cannot continue, for example because the loss is not finite."""


class MissingExtraError(TriviumError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        """Create the message that the feature `what` requires the package extra named `extra`."""
        super().__init__(
            f"{what} needs an optional part. Install it in the folder of Trivium's code: `make "
            f"setup EXTRAS={extra}`, or in an environment of your own `pip install '.[{extra}]'`."
        )


@contextlib.contextmanager
def require_extra(what: str, extra: str) -> Iterator[None]:
    """Convert an ImportError inside the `with` block into a MissingExtraError.

    `what` is the feature that needs the import. `extra` is the package extra that installs it.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


def nearest_name(name: str, known: Iterable[str]) -> list[str]:
    """Return the known name that is most similar to `name`, as a list of at most one name.

    If no name is similar enough, the result is the first known name that starts with `name`.

    >>> nearest_name("act", ["gated", "activation"])
    ['activation']
    """
    known = sorted(filter(None, known))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return close or [one for one in known if name and one.startswith(name)][:1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelt name, to be appended to an error message.

    Returns "" if no known name is similar to `name`.

    >>> did_you_mean("bert-smal", ["bert-small", "gpt2"])
    ' Did you mean "bert-small"?'
    """
    return "".join(f' Did you mean "{shorten(near, 100)}"?' for near in nearest_name(name, known))


def did_you_mean_model(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelt model name, to be appended to an error message.

    Only known names whose family (the part before the first hyphen) is similar to the start of
    `name` are suggested. Returns "" if there are none.

    >>> known = ["llama-7b", "bert-mini"]
    >>> did_you_mean_model("lama-7b", known), did_you_mean_model("pegasus-mini", known)
    (' Did you mean "llama-7b"?', '')
    """
    name = name.lower()

    def is_similar(other: str) -> bool:
        """Return whether `name` begins with something similar to the family of `other`."""
        family = other.partition("-")[0]
        return difflib.SequenceMatcher(None, family, name[: len(family)]).ratio() > 0.7

    return did_you_mean(name, filter(is_similar, known))


def shorten(text: str, length: int = 60) -> str:
    """Cut a text to at most `length` characters, for an error message. A cut text ends with "...".

    >>> shorten("a long story", 8)
    'a lon...'
    """
    return text if len(text) <= length else f"{text[: length - 3]}..."
