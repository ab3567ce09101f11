"""What all results of an evaluation have in common, whatever was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

from trivium.errors import DataError

# Of these numbers a smaller one is better, of all others a larger one.
LOWER_IS_BETTER = frozenset({"loss", "mae", "mse", "perplexity"})

_MOST_NAMES = 30

TableRow = tuple[str, ...]


class Metrics(Protocol):
    """The result of one evaluation."""

    @property
    def main(self) -> tuple[str, float]:
        """Name and value of the metric that decides which checkpoint is the best: larger is."""
        ...

    def to_dict(self) -> dict[str, float]:
        """Every overall number by its name, for JSON."""
        ...

    def table(self) -> list[TableRow]:
        """Results by class as text: the first row names the columns."""
        ...


@dataclass(frozen=True)
class ClassScore:
    """How well one class is found; `support` is how often it is right. Shares of 1."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


def class_table(kind: str, scores: Iterable[ClassScore]) -> list[TableRow]:
    """Scores as rows of text; `kind` says what the first column names."""
    rows = [
        (one.name, f"{one.precision:.4f}", f"{one.recall:.4f}", f"{one.f1:.4f}", str(one.support))
        for one in scores
    ]
    return [(kind, "Precision", "Recall", "F1", "Support"), *rows]


def check_equal_lengths(gold: Sized, predicted: Sized, what: str) -> None:
    """Nothing can be measured on nothing, or on predictions that belong to something else.

    Raises:
        DataError: there are none, or not one prediction for each.
    """
    if len(gold) != len(predicted):
        raise DataError(
            f"{len(predicted)} predictions for {len(gold)} {what}: there has to be one for each."
        )
    if not len(gold):
        raise DataError(f"there are no {what} to evaluate on: is the file empty?")


def listing(names: Sequence[str]) -> str:
    """Names for a message, not too many of them.

    >>> listing(["good", "bad"])
    '"good", "bad"'
    """
    shown = ", ".join(f'"{name}"' for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
