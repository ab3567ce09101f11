"""How well texts are put into classes, given labels, or given numbers.

scikit-learn and SciPy do the arithmetic, so that the numbers mean what they mean elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.errors import DataError, did_you_mean
from trivium.evaluate.metrics import (
    ClassScore,
    TableRow,
    check_equal_lengths,
    class_table,
    listing,
)
from trivium.evaluate.optional import optional_part


@dataclass(frozen=True)
class ClassificationMetrics:
    """Of texts with one class each. Shares of 1; Matthews' correlation is in [-1, 1].

    `macro_f1` is the mean over the classes that are right or predicted at least once, as in
    scikit-learn. `confusion[g][p]` counts the texts of class g that were put into p.
    """

    accuracy: float
    macro_f1: float
    micro_f1: float
    weighted_f1: float
    matthews: float
    per_class: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...]
    count: int

    @property
    def main(self) -> tuple[str, float]:
        """Accuracy."""
        return "accuracy", self.accuracy

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, in the order of `confusion`."""
        return tuple(score.name for score in self.per_class)

    def to_dict(self) -> dict[str, float]:
        """Every overall number by its name."""
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "micro_f1": self.micro_f1,
            "weighted_f1": self.weighted_f1,
            "matthews": self.matthews,
            "count": self.count,
        }

    def table(self) -> list[TableRow]:
        """One row a class below a row of names."""
        return class_table("Class", self.per_class)


@dataclass(frozen=True)
class MultiLabelMetrics:
    """Of texts with any number of labels each. Shares of 1.

    `subset_accuracy` counts the texts whose labels are all right. `macro_f1` is the mean over all
    labels; one that is neither right nor predicted anywhere has an F1 of 0, as in scikit-learn.
    """

    micro_f1: float
    macro_f1: float
    subset_accuracy: float
    per_class: tuple[ClassScore, ...]
    count: int

    @property
    def main(self) -> tuple[str, float]:
        """F1 over all decisions."""
        return "micro_f1", self.micro_f1

    def to_dict(self) -> dict[str, float]:
        """Every overall number by its name."""
        return {
            "micro_f1": self.micro_f1,
            "macro_f1": self.macro_f1,
            "subset_accuracy": self.subset_accuracy,
            "count": self.count,
        }

    def table(self) -> list[TableRow]:
        """One row a label below a row of names."""
        return class_table("Label", self.per_class)


@dataclass(frozen=True)
class RegressionMetrics:
    """Of texts with one number each.

    A correlation is 0 where it has no meaning: fewer than two numbers, or all of them equal; so
    is `r2` of a single number.
    """

    pearson: float
    spearman: float
    mse: float
    mae: float
    r2: float
    count: int

    @property
    def main(self) -> tuple[str, float]:
        """Pearson's correlation."""
        return "pearson", self.pearson

    def to_dict(self) -> dict[str, float]:
        """Every number by its name; of `mse` and `mae` a smaller one is better."""
        return {
            "pearson": self.pearson,
            "spearman": self.spearman,
            "mse": self.mse,
            "mae": self.mae,
            "r2": self.r2,
            "count": self.count,
        }

    def table(self) -> list[TableRow]:
        """One row a number below a row of names: there are no classes."""
        rows = [(name, f"{value:.6g}") for name, value in self.to_dict().items()]
        return [("Measure", "Value"), *rows]


def label_indices(
    labels: Sequence[str], names: Sequence[str], *, where: Sequence[str] = ()
) -> list[int]:
    """The place of each label among the names that a model knows.

    `where` says, for each label, in which file and line it stands.

    Raises:
        DataError: a label that the model does not know.
    """
    places = {name: place for place, name in enumerate(names)}
    for number, label in enumerate(labels):
        if label not in places:
            at = where[number] if where else f"example {number + 1}"
            raise DataError(
                f'{at}: the label "{label}" is unknown to the model, which knows '
                f"{listing(names)}.{did_you_mean(label, names)}"
            )
    return [places[label] for label in labels]


def classification_metrics(
    gold: ArrayLike, predicted: ArrayLike, names: Sequence[str]
) -> ClassificationMetrics:
    """Compare the right class of each text with the predicted one.

    Args:
        gold, predicted: int [N], each below len(names).
        names: of the classes.

    Raises:
        DataError: no texts, unequal numbers of them, or a class that has no name.
        MissingExtraError: scikit-learn is not installed.
    """
    with optional_part("Measuring classification"):
        from sklearn import metrics
    right, found = _indices(gold, names), _indices(predicted, names)
    check_equal_lengths(right, found, "labels")
    everything = np.arange(len(names))
    present = np.union1d(right, found)
    zero: Any = 0.0  # Declared as text in scikit-learn.

    def mean_f1(average: Any) -> float:
        return float(
            metrics.f1_score(right, found, labels=present, average=average, zero_division=zero)
        )

    parts = metrics.precision_recall_fscore_support(
        right, found, labels=everything, average=None, zero_division=zero
    )
    size = len(names)
    confusion = np.bincount(right * size + found, minlength=size * size).reshape(size, size)
    return ClassificationMetrics(
        accuracy=float(metrics.accuracy_score(right, found)),
        macro_f1=mean_f1("macro"),
        micro_f1=mean_f1("micro"),
        weighted_f1=mean_f1("weighted"),
        # scikit-learn says 0 of a single class too, but with a warning.
        matthews=float(metrics.matthews_corrcoef(right, found)) if len(present) > 1 else 0.0,
        per_class=_class_scores(names, parts),
        confusion=tuple(tuple(int(count) for count in row) for row in confusion),
        count=len(right),
    )


def multi_label_metrics(
    gold: ArrayLike, predicted: ArrayLike, names: Sequence[str]
) -> MultiLabelMetrics:
    """Compare the right labels of each text with the predicted ones.

    Args:
        gold, predicted: bool or 0 and 1, [N, L]: whether text n has label l.
        names: of the L labels.

    Raises:
        DataError: no texts, shapes that do not fit, or other values than 0 and 1.
    """
    right, found = _indicators(gold, names), _indicators(predicted, names)
    check_equal_lengths(right, found, "texts")
    hits, wrong, missed = (
        counts.sum(axis=0, dtype=np.int64)
        for counts in (right & found, ~right & found, right & ~found)
    )
    precision, recall, f1 = _precision_recall_f1(hits, wrong, missed)
    micro = _precision_recall_f1(hits.sum(), wrong.sum(), missed.sum())[2]
    return MultiLabelMetrics(
        micro_f1=float(micro),
        macro_f1=float(f1.mean()),
        subset_accuracy=float((right == found).all(axis=1).mean()),
        per_class=_class_scores(names, (precision, recall, f1, hits + missed)),
        count=len(right),
    )


def regression_metrics(gold: ArrayLike, predicted: ArrayLike) -> RegressionMetrics:
    """Compare the right number of each text with the predicted one.

    Args:
        gold, predicted: float [N].

    Raises:
        DataError: no numbers, unequal numbers of them, or one that is not finite.
        MissingExtraError: scikit-learn or SciPy is not installed.
    """
    with optional_part("Measuring regression"):
        from scipy import stats
        from sklearn import metrics
    right, found = _numbers(gold, "right value"), _numbers(predicted, "prediction")
    check_equal_lengths(right, found, "values")
    pearson: Any = stats.pearsonr
    spearman: Any = stats.spearmanr
    with warnings.catch_warnings():
        # SciPy warns of numbers that are almost all equal; their correlation is still one.
        warnings.simplefilter("ignore")
        varies = np.ptp(right) > 0 and np.ptp(found) > 0
        results = RegressionMetrics(
            pearson=float(pearson(right, found)[0]) if varies else 0.0,
            spearman=float(spearman(right, found)[0]) if varies else 0.0,
            mse=float(metrics.mean_squared_error(right, found)),
            mae=float(metrics.mean_absolute_error(right, found)),
            r2=float(metrics.r2_score(right, found)) if len(right) > 1 else 0.0,
            count=len(right),
        )
    if not np.isfinite(list(results.to_dict().values())).all():
        raise DataError("the numbers are too large to be squared: bring them nearer to 1.")
    return results


def _indices(values: ArrayLike, names: Sequence[str]) -> NDArray[np.int64]:
    """Class ids as an array [N]."""
    found = np.asarray(values)
    assert found.ndim == 1, "class ids have one axis"
    outside = ~np.isin(found, np.arange(len(names)))
    if outside.any():
        number = int(outside.argmax())
        raise DataError(
            f"example {number + 1} has class {found[number]}; there are classes 0 to "
            f"{len(names) - 1}: {listing(names)}."
        )
    return found.astype(np.int64)


def _indicators(values: ArrayLike, names: Sequence[str]) -> NDArray[np.bool_]:
    """Labels as an array [N, L]."""
    found = np.asarray(values)
    if found.ndim != 2 or found.shape[1] != len(names):
        if not found.size:
            return np.zeros((0, len(names)), dtype=bool)
        raise DataError(f"labels of shape {found.shape} for {len(names)} names: {listing(names)}.")
    if not np.isin(found, (0, 1)).all():
        raise DataError("whether a text has a label is told by 0 or 1, or by false and true.")
    return found.astype(bool)


def _numbers(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """Finite numbers as an array [N]."""
    found = np.asarray(values, dtype=np.float64)
    assert found.ndim == 1, "values have one axis"
    odd = ~np.isfinite(found)
    if odd.any():
        number = int(odd.argmax())
        raise DataError(f"{what} {number + 1} is {found[number]}: only finite numbers can be used.")
    return found


def _precision_recall_f1(hits: Any, wrong: Any, missed: Any) -> tuple[NDArray[np.float64], ...]:
    """TP / (TP + FP), TP / (TP + FN) and 2 TP / (2 TP + FP + FN); 0 where nothing was counted."""
    totals = (hits + wrong, hits + missed, 2 * hits + wrong + missed)
    return tuple(part * hits / np.maximum(total, 1) for part, total in zip((1.0, 1.0, 2.0), totals))


def _class_scores(names: Sequence[str], parts: Any) -> tuple[ClassScore, ...]:
    """From precision, recall, F1 and support, [classes] each."""
    return tuple(
        ClassScore(name, float(precision), float(recall), float(f1), int(support))
        for name, precision, recall, f1, support in zip(names, *parts, strict=True)
    )
