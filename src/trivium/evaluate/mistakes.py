"""The mistakes that a model was surest of: odd labels in the data are often among them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from trivium.evaluate.metrics import TableRow

_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Mistake:
    """One wrong prediction; `where` is its file and line, `confidence` a probability."""

    where: str
    text: str
    gold: str
    predicted: str
    confidence: float


def worst_mistakes(
    gold: Sequence[str],
    predicted: Sequence[str],
    confidence: Sequence[float],
    *,
    texts: Sequence[str],
    where: Sequence[str] = (),
    wrong: Sequence[bool] | None = None,
    count: int = 20,
) -> tuple[Mistake, ...]:
    """The `count` wrong predictions with the highest confidence, the surest first.

    Args:
        gold, predicted, confidence, texts: of every example.
        where: file and line of every example; by default its number from 1.
        wrong: which predictions are; by default those that differ from what is right.
    """
    if wrong is None:
        wrong = [right != found for right, found in zip(gold, predicted, strict=True)]
    places = [place for place, is_wrong in enumerate(wrong) if is_wrong]
    # nsmallest keeps the order of equals; one that is not a number comes last.
    surest = heapq.nsmallest(
        count,
        places,
        key=lambda place: (confidence[place] != confidence[place], -confidence[place]),
    )
    return tuple(
        Mistake(
            where=where[place] if where else f"example {place + 1}",
            text=texts[place],
            gold=gold[place],
            predicted=predicted[place],
            confidence=float(confidence[place]),
        )
        for place in surest
    )


def mistakes_table(mistakes: Sequence[Mistake]) -> list[TableRow]:
    """Mistakes as rows of text below a row of names; long texts are cut."""
    rows = [
        (one.where, _shortened(one.text), one.gold, one.predicted, f"{one.confidence:.3f}")
        for one in mistakes
    ]
    return [("Where", "Text", "Right", "Predicted", "Confidence"), *rows]


def _shortened(text: str) -> str:
    """On one line, of at most _MOST_CHARACTERS."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 3]}..."
