"""What a task measures: values by name, results by label, and the worst mistakes."""

from __future__ import annotations

import dataclasses
import heapq
import importlib.util
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.errors import MissingExtraError

LOWER_IS_BETTER = frozenset({"loss", "perplexity", "mse", "mae"})
EVALUATION, PREDICTIONS = "evaluation.json", "predictions.jsonl"
_SHOWN_NAMES = 30


@dataclass(frozen=True, slots=True)
class LabelScore:
    """Precision, recall and F1 of one label; `support` counts the examples that have it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong prediction; `where` is file and line, `confidence` its probability if known."""

    where: str
    text: str
    expected: str
    predicted: str
    confidence: float | None = None


@dataclass(frozen=True)
class Metrics:
    """What a model reaches on labelled examples.

    Args:
        main: the name of the value that decides which weights are the best.
        values: by name. Shares (accuracy, F1, BLEU, ROUGE, ...) are fractions from 0 to 1,
            correlations from -1 to 1; a loss is in nats.
        num_examples: how many examples these are.
        notes: how values were computed, such as sacrebleu's signatures.
        by_label: one row a label or a chunk type.
        labels, confusion: confusion[g][p] counts examples of label g that were predicted as p.
        mistakes: wrong predictions, the most confident first.
        predictions: one object an example, for `predictions.jsonl`.
    """

    main: str
    values: dict[str, float]
    num_examples: int
    notes: tuple[str, ...] = ()
    by_label: tuple[LabelScore, ...] = ()
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    predictions: tuple[dict[str, Any], ...] = ()

    @property
    def score(self) -> float:
        """The main value, negated where lower is better: the larger score is the better one."""
        value = self.values[self.main]
        return -value if self.main in LOWER_IS_BETTER else value

    def to_dict(self) -> dict[str, Any]:
        """The content of `evaluation.json`: everything but the predictions."""
        tree = dataclasses.asdict(dataclasses.replace(self, predictions=()))
        return {name: value for name, value in tree.items() if value or name == "num_examples"}


def label_scores(report: dict[str, Any], names: Iterable[str]) -> tuple[LabelScore, ...]:
    """Rows of a report that scikit-learn or seqeval made with `output_dict=True`."""
    return tuple(
        LabelScore(
            name,
            float(report[name]["precision"]),
            float(report[name]["recall"]),
            float(report[name]["f1-score"]),
            int(report[name]["support"]),
        )
        for name in names
    )


def worst(mistakes: Iterable[Mistake], count: int = 20) -> tuple[Mistake, ...]:
    """The `count` mistakes of the highest confidence: wrong labels are often among them."""
    return tuple(heapq.nsmallest(count, mistakes, key=lambda one: -(one.confidence or 0.0)))


def require_libraries(task: str, *modules: str) -> None:
    """Check that the libraries of a task's metrics are installed, before anything is trained.

    Raises:
        MissingExtraError: one is not; the message names the install command.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"measuring {task} ({', '.join(missing)})", "metrics")


def listing(names: Sequence[str]) -> str:
    """Names for a message, the first thirty of them.

    >>> listing(["good", "bad"])
    '"good", "bad"'
    """
    shown = ", ".join(f'"{name}"' for name in names[:_SHOWN_NAMES])
    more = len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def first_prediction(run: Path) -> dict[str, Any]:
    """The first held-out example of a finished run, for the command to try; {} without one."""
    try:
        with open(run / PREDICTIONS, encoding="utf-8") as file:
            return json.loads(file.readline() or "{}")
    except OSError:
        return {}
