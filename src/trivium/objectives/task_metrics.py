"""Metrics of tasks: values by name, results by label, and the worst mistakes.

Metrics of labels and numbers are those of scikit-learn and SciPy.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.errors import DataError, RecipeError, did_you_mean, shorten
from trivium.files import nan_to_none, write_file, write_json
from trivium.objectives.calibration import Calibration

EVALUATION, PREDICTIONS = "evaluation.json", "predictions.jsonl"
MAX_MISTAKES = 20  # that an evaluation shows
_SHOWN_NAMES = 30


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong prediction; `where` is file and line, `confidence` its probability if known."""

    where: str
    text: str
    expected: str
    predicted: str
    confidence: float | None = None


def perplexity_of(nats: float, num_tokens: float) -> float:
    """Return e to the nats per token. Raises DataError where there is no token."""
    if not num_tokens:
        raise DataError(
            "there is no token to compute a perplexity of: nothing is left of the responses where "
            "prompts fill the tokens that are read at once. Give shorter prompts, or raise "
            "data.length."
        )
    return math.exp(min(nats / num_tokens, 700.0))


@dataclass(frozen=True)
class Metrics:
    """The results of a model on labelled examples.

    Args:
        values: by name, the main one first. Shares (accuracy, F1, BLEU, ROUGE, ...) are fractions
            from 0 to 1, correlations from -1 to 1; a loss is in nats.
        lower_is_better: names of values of which the lower one is better.
        predictions: one object an example, in order, for `predictions.jsonl`.
        notes: how values were computed, such as sacrebleu's signatures.
        by_label: label, precision, recall, f1 and support of every label or chunk type.
        labels, confusion: confusion[g][p] counts examples of label g that were predicted as p.
        mistakes: wrong predictions, the most confident first.
        calibration: accuracy by coverage and a suggested threshold, for one class per text.
    """

    values: dict[str, float]
    lower_is_better: tuple[str, ...] = ("loss", "perplexity", "mse", "mae")
    predictions: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    by_label: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    mistakes: tuple[Mistake, ...] = field(default=(), repr=False)
    calibration: Calibration | None = field(default=None, repr=False)

    @property
    def main(self) -> str:
        """Return the name of the main value."""
        return next(iter(self.values))

    @property
    def higher_is_better(self) -> bool:
        """Return whether a higher main value is better; the best weights are chosen by it."""
        return self.main.rpartition("/")[-1] not in self.lower_is_better

    @property
    def score(self) -> float:
        """The main value, negated where lower is better: the larger score is the better one."""
        value = self.values[self.main]
        return value if self.higher_is_better else -value

    def with_main(self, name: str | None) -> Metrics:
        """Return the metrics with another main value. Raises RecipeError where it is missing."""
        if name is None:
            return self
        if name not in self.values:
            raise RecipeError(
                f'train.metric = "{name}" is no metric of this task: choose one of '
                f"{', '.join(self.values)}.{did_you_mean(name, self.values)}"
            )
        return dataclasses.replace(self, values={name: self.values[name], **self.values})

    def with_examples(
        self, predictions: Iterable[dict[str, Any]], mistakes: Iterable[Mistake] = ()
    ) -> Metrics:
        """Return the values with the predictions of all examples, and the worst mistakes.

        The worst mistakes have the highest confidence; the first come first where it is equal.
        Wrong labels are often among them.
        """
        worst = heapq.nsmallest(MAX_MISTAKES, mistakes, key=lambda one: -(one.confidence or 0.0))
        return dataclasses.replace(self, predictions=tuple(predictions), mistakes=tuple(worst))

    def to_dict(self) -> dict[str, Any]:
        """The content of `evaluation.json`: everything but the predictions; "main" names a value.

        A value that is not finite is null.
        """
        tree = dataclasses.asdict(dataclasses.replace(self, predictions=()))
        values = nan_to_none(self.values)
        details = {name: v for name, v in tree.items() if v and name != "lower_is_better"}
        return {
            **details,
            "main": self.main,
            "values": values,
            "higher_is_better": self.higher_is_better,
            "num_examples": len(self.predictions),
        }


def mixed_metrics(results: Mapping[str, Metrics]) -> Metrics:
    """The metrics of the labelled sources of a run as one; the main value is that of the first.

    In a mix, values are named SOURCE/VALUE; of several sources, predictions have the name as `mix`.
    """
    name, first = next(iter(results.items()))
    if not name:
        return first
    values = {
        f"{source}/{key}": v for source, one in results.items() for key, v in one.values.items()
    }
    if len(results) == 1:
        return dataclasses.replace(first, values=values)
    rows = ({"mix": source, **row} for source, one in results.items() for row in one.predictions)
    return Metrics(
        values,
        first.lower_is_better,
        predictions=tuple(rows),
        notes=tuple(dict.fromkeys(note for one in results.values() for note in one.notes)),
        mistakes=tuple(mistake for one in results.values() for mistake in one.mistakes),
    )


def write_metrics(folder: str | Path, task: str, metrics: Metrics) -> None:
    """Write `evaluation.json` (with the name of the task) and `predictions.jsonl` to a run."""
    write_json(Path(folder) / EVALUATION, {"task": task, **metrics.to_dict()})
    predictions = map(nan_to_none, metrics.predictions)
    lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in predictions)
    write_file(Path(folder) / PREDICTIONS, "".join(lines))


def class_metrics(gold: ArrayLike, predicted: ArrayLike, names: Sequence[str]) -> Metrics:
    """Metrics of single labels, indices [N]; macro F1 is over the labels that occur."""
    sk = _sklearn_metrics()
    several = len(np.union1d(gold, predicted)) > 1  # scikit-learn warns of one label alone
    confusion = sk.confusion_matrix(gold, predicted, labels=range(len(names))).tolist()
    return Metrics(
        {
            "accuracy": float(sk.accuracy_score(gold, predicted)),
            "macro_f1": float(sk.f1_score(gold, predicted, average="macro", zero_division=0)),
            "weighted_f1": float(sk.f1_score(gold, predicted, average="weighted", zero_division=0)),
            "matthews": float(sk.matthews_corrcoef(gold, predicted)) if several else 0.0,
        },
        by_label=_scores_by_label(gold, predicted, names),
        labels=tuple(names),
        confusion=tuple(map(tuple, confusion)),
    )


def multi_label_metrics(gold: NDArray, predicted: NDArray, names: Sequence[str]) -> Metrics:
    """Metrics of indicators [N, L]; subset accuracy counts texts whose labels are all right."""
    sk, gold, predicted = _sklearn_metrics(), gold.astype(np.int64), predicted.astype(np.int64)
    return Metrics(
        {
            "micro_f1": float(sk.f1_score(gold, predicted, average="micro", zero_division=0)),
            "macro_f1": float(sk.f1_score(gold, predicted, average="macro", zero_division=0)),
            "subset_accuracy": float(sk.accuracy_score(gold, predicted)),
        },
        by_label=_scores_by_label(gold, predicted, names),
    )


def regression_metrics(gold: NDArray, predicted: NDArray) -> Metrics:
    """Return R2, correlations and errors of numbers [N]; a correlation with a constant is 0.

    R2 is the main value: unlike a correlation it also counts a wrong scale.
    """
    from scipy import stats

    sk, pearson, spearman = _sklearn_metrics(), 0.0, 0.0
    if len(gold) > 1 and np.ptp(gold) > 0 and np.ptp(predicted) > 0:
        results: Any = stats.pearsonr(gold, predicted), stats.spearmanr(gold, predicted)
        pearson, spearman = (float(result[0]) for result in results)
    values = {
        "r2": float(sk.r2_score(gold, predicted)) if len(gold) > 1 else 0.0,
        "pearson": pearson,
        "spearman": spearman,
        "mse": float(sk.mean_squared_error(gold, predicted)),
        "mae": float(sk.mean_absolute_error(gold, predicted)),
    }
    # R2 compares with the mean, which says nothing where all numbers are equal.
    return Metrics(values).with_main("r2" if np.ptp(gold) > 0 else "mse")


def _scores_by_label(gold: ArrayLike, predicted: ArrayLike, names: Sequence[str]) -> Any:
    report = _sklearn_metrics().classification_report(
        gold,
        predicted,
        labels=range(len(names)),
        target_names=names,
        output_dict=True,
        zero_division=0,
    )
    return label_scores(report, names)


def _sklearn_metrics() -> Any:
    """scikit-learn's metrics, whose stubs declare `zero_division` as text."""
    from sklearn import metrics

    return metrics


def label_scores(report: dict[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], ...]:
    """Return the rows of a report of scikit-learn or seqeval with `output_dict=True`."""
    return tuple(
        {
            "label": name,
            "precision": float(report[name]["precision"]),
            "recall": float(report[name]["recall"]),
            "f1": float(report[name]["f1-score"]),
            "support": int(report[name]["support"]),
        }
        for name in names
    )


def label_id(name: str, ids: Mapping[str, int], where: str) -> int:
    """The id of a label. Raises DataError, with file and line, where the model has none."""
    if name not in ids:
        raise DataError(
            f'{where}: the label "{shorten(name)}" is unknown to the model, which knows '
            f"{listing(list(ids))}.{did_you_mean(name, ids)}"
        )
    return ids[name]


def unknown_labels(
    labels: Sequence[Sequence[str]], known: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of examples that a model does not know, and a note that counts them."""
    unknown = sorted({name for names in labels for name in names}.difference(known))
    count = sum(not {*unknown}.isdisjoint(names) for names in labels)
    note = (
        f"{count:,} of {len(labels):,} examples have labels that the model does not know, and "
        f"count as wrong: {listing(unknown)}"
    )
    return tuple(unknown), (note,) * bool(unknown)


def listing(names: Sequence[str]) -> str:
    """Names for a message, the first thirty of them.

    >>> listing(["good", "bad"])
    '"good", "bad"'
    """
    shown = ", ".join(f'"{shorten(name, 40)}"' for name in names[:_SHOWN_NAMES])
    more = len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def first_prediction(run: str) -> dict[str, Any]:
    """The first held-out example of a finished run, for the command to try; {} where none is."""
    try:
        with open(Path(run) / PREDICTIONS, encoding="utf-8") as file:
            first = json.loads(file.readline() or "{}")
    except (OSError, ValueError, RecursionError):
        return {}
    return first if isinstance(first, dict) else {}
