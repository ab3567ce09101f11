"""Metrics of labels and numbers, by scikit-learn and SciPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.objectives.task_metrics import Metrics, label_scores


def class_metrics(gold: ArrayLike, predicted: ArrayLike, names: Sequence[str]) -> Metrics:
    """Metrics of single labels, indices [N]; macro F1 is over the labels that occur."""
    sk, labels = _sklearn_metrics(), list(range(len(names)))
    several = len(np.union1d(gold, predicted)) > 1  # scikit-learn warns of one label alone
    confusion = sk.confusion_matrix(gold, predicted, labels=labels).tolist()
    return Metrics(
        {
            "accuracy": float(sk.accuracy_score(gold, predicted)),
            "macro_f1": float(sk.f1_score(gold, predicted, average="macro", zero_division=0)),
            "weighted_f1": float(sk.f1_score(gold, predicted, average="weighted", zero_division=0)),
            "matthews": float(sk.matthews_corrcoef(gold, predicted)) if several else 0.0,
        },
        by_label=_by_label(gold, predicted, names),
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
        by_label=_by_label(gold, predicted, names),
    )


def regression_metrics(gold: NDArray, predicted: NDArray) -> Metrics:
    """Correlations and errors of numbers [N]; a correlation with a constant is 0."""
    from scipy import stats

    sk, correlations = _sklearn_metrics(), {"pearson": 0.0, "spearman": 0.0}
    if len(gold) > 1 and np.ptp(gold) > 0 and np.ptp(predicted) > 0:
        results: Any = stats.pearsonr(gold, predicted), stats.spearmanr(gold, predicted)
        correlations = {name: float(one[0]) for name, one in zip(correlations, results)}
    return Metrics(
        {
            **correlations,
            "mse": float(sk.mean_squared_error(gold, predicted)),
            "mae": float(sk.mean_absolute_error(gold, predicted)),
            "r2": float(sk.r2_score(gold, predicted)) if len(gold) > 1 else 0.0,
        }
    )


def _by_label(gold: ArrayLike, predicted: ArrayLike, names: Sequence[str]) -> Any:
    report = _sklearn_metrics().classification_report(
        gold,
        predicted,
        labels=list(range(len(names))),
        target_names=names,
        output_dict=True,
        zero_division=0,
    )
    return label_scores(report, names)


def _sklearn_metrics() -> Any:
    """scikit-learn's metrics, whose stubs declare `zero_division` as text."""
    from sklearn import metrics

    return metrics
