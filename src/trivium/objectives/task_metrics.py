"""Metrics of fine-tuning tasks: values by name, scores per label, and the worst mistakes.

Metrics of classification and regression are computed with scikit-learn and SciPy.
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
MAX_MISTAKES = 20
"""The maximum number of mistakes that an evaluation prints."""
_MAX_NAMES = 30


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong prediction for an example.

    Args:
        where: file and line of the example.
        text: the input text, or the wrongly tagged word.
        expected: the correct label or answer.
        predicted: the predicted label or answer.
        confidence: the probability of the prediction, if known.
    """

    where: str
    text: str
    expected: str
    predicted: str
    confidence: float | None = None


def compute_perplexity(nats: float, num_tokens: float) -> float:
    """Return the perplexity exp(nats / num_tokens).

    `nats` is the cross-entropy, summed over the tokens. Raises DataError if there are no tokens.
    """
    if not num_tokens:
        raise DataError(
            "there is no token to compute a perplexity of: truncation removed all responses, "
            "because the prompts are as long as data.length. Give shorter prompts, or raise "
            "data.length."
        )
    return math.exp(min(nats / num_tokens, 700.0))


@dataclass(frozen=True)
class Metrics:
    """The results of evaluating a model on labelled examples.

    Args:
        values: the metrics by name, the main metric first. Accuracy, F1, BLEU, ROUGE and similar
            metrics are between 0 and 1, correlations between -1 and 1. A loss is in nats.
        lower_is_better: the names of metrics for which lower values are better.
        predictions: one object per example, in order, for `predictions.jsonl`.
        notes: notes on how the values were computed, for example sacrebleu's signatures.
        by_label: a dictionary with the keys label, precision, recall, f1 and support for every
            label or chunk type.
        labels: the names of the rows and columns of `confusion`.
        confusion: the confusion matrix: confusion[g][p] is the number of examples with label g and
            prediction p.
        mistakes: wrong predictions, most confident first.
        calibration: accuracy by coverage and a suggested threshold, for single-label tasks.
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
        """The name of the main metric."""
        return next(iter(self.values))

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the main metric is better."""
        return self.main.rpartition("/")[-1] not in self.lower_is_better

    @property
    def score(self) -> float:
        """The main metric as a score for which higher is always better.

        If lower values of the metric are better, it is negated.
        """
        value = self.values[self.main]
        return value if self.higher_is_better else -value

    def with_main_metric(self, name: str | None) -> Metrics:
        """Return a copy that has `name` as its main metric.

        If `name` is None, the metrics are returned unchanged. Raises RecipeError if there is no
        metric of this name.
        """
        if name is None:
            return self
        if name not in self.values:
            raise RecipeError(
                f'train.metric = "{name}" is not a metric of this task: choose one of '
                f"{', '.join(self.values)}.{did_you_mean(name, self.values)}"
            )
        return dataclasses.replace(self, values={name: self.values[name], **self.values})

    def with_examples(
        self, predictions: Iterable[dict[str, Any]], mistakes: Iterable[Mistake] = ()
    ) -> Metrics:
        """Return a copy with the predictions of all examples and the worst mistakes.

        The worst mistakes are the most confident wrong predictions, which often reveal wrong labels
        in the data.
        """
        worst = heapq.nsmallest(MAX_MISTAKES, mistakes, key=lambda one: -(one.confidence or 0.0))
        return dataclasses.replace(self, predictions=tuple(predictions), mistakes=tuple(worst))

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the predictions as a dict, to be written to `evaluation.json`.

        The key "main" contains the name of the main metric. Non-finite values become null in JSON.
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


def merge_metrics(results: Mapping[str, Metrics]) -> Metrics:
    """Merge the metrics of several labelled sources. The first source provides the main metric.

    In a mixture, metrics are named SOURCE/METRIC. With several sources, each prediction contains
    the name of its source as `mix`.

    Args:
        results: the metrics by the name of the source. A single source outside a mixture has the
            name "".
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


def write_evaluation(folder: str | Path, task: str, metrics: Metrics) -> None:
    """Write metrics to `evaluation.json` and predictions to `predictions.jsonl` in a folder.

    `evaluation.json` also contains the name of the task.
    """
    write_json(Path(folder) / EVALUATION, {"task": task, **metrics.to_dict()})
    predictions = map(nan_to_none, metrics.predictions)
    lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in predictions)
    write_file(Path(folder) / PREDICTIONS, "".join(lines))


def compute_class_metrics(gold: ArrayLike, predicted: ArrayLike, names: Sequence[str]) -> Metrics:
    """Compute accuracy, F1, Matthews correlation and confusion matrix of single-label predictions.

    Macro F1 is the mean over the labels that occur.

    Args:
        gold: the correct label of each of N texts, as an index into `names`, [N].
        predicted: the predicted labels, in the same format.
        names: the names of the labels.
    """
    sk = _import_sklearn_metrics()
    several = len(np.union1d(gold, predicted)) > 1  # scikit-learn warns if there is only one label
    confusion = sk.confusion_matrix(gold, predicted, labels=range(len(names))).tolist()
    return Metrics(
        {
            "accuracy": float(sk.accuracy_score(gold, predicted)),
            "macro_f1": float(sk.f1_score(gold, predicted, average="macro", zero_division=0)),
            "weighted_f1": float(sk.f1_score(gold, predicted, average="weighted", zero_division=0)),
            "matthews": float(sk.matthews_corrcoef(gold, predicted)) if several else 0.0,
        },
        by_label=_compute_label_scores(gold, predicted, names),
        labels=tuple(names),
        confusion=tuple(map(tuple, confusion)),
    )


def compute_multi_label_metrics(gold: NDArray, predicted: NDArray, names: Sequence[str]) -> Metrics:
    """Compute F1 and subset accuracy of multi-label predictions.

    Subset accuracy is the fraction of texts for which all labels are correct.

    Args:
        gold: 1 for each of the L labels that a text has, otherwise 0, [N, L] for N texts.
        predicted: the predicted labels, in the same format.
        names: the names of the labels.
    """
    sk, gold, predicted = (
        _import_sklearn_metrics(),
        gold.astype(np.int64),
        predicted.astype(np.int64),
    )
    return Metrics(
        {
            "micro_f1": float(sk.f1_score(gold, predicted, average="micro", zero_division=0)),
            "macro_f1": float(sk.f1_score(gold, predicted, average="macro", zero_division=0)),
            "subset_accuracy": float(sk.accuracy_score(gold, predicted)),
        },
        by_label=_compute_label_scores(gold, predicted, names),
    )


def compute_regression_metrics(gold: NDArray, predicted: NDArray) -> Metrics:
    """Compute R2, correlations and errors of N predicted numbers.

    Both arguments are [N]. R2 is the main metric, because unlike a correlation it depends on the
    scale of the predictions. A correlation with a constant is reported as 0.
    """
    from scipy import stats

    sk, pearson, spearman = _import_sklearn_metrics(), 0.0, 0.0
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
    # R2 compares with the mean. It is undefined if all numbers are equal.
    return Metrics(values).with_main_metric("r2" if np.ptp(gold) > 0 else "mse")


def _compute_label_scores(gold: ArrayLike, predicted: ArrayLike, names: Sequence[str]) -> Any:
    """Compute precision, recall, F1 and support of every label with scikit-learn.

    Returns one dictionary per label.
    """
    report = _import_sklearn_metrics().classification_report(
        gold,
        predicted,
        labels=range(len(names)),
        target_names=names,
        output_dict=True,
        zero_division=0,
    )
    return get_label_scores(report, names)


def _import_sklearn_metrics() -> Any:
    """Import `sklearn.metrics` and return the module.

    Its type is Any, because the stubs of scikit-learn declare `zero_division` as str.
    """
    from sklearn import metrics

    return metrics


def get_label_scores(report: dict[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], ...]:
    """Extract precision, recall, F1 and support of every label from a classification report.

    Returns one dictionary per label.

    Args:
        report: a report of scikit-learn or seqeval with `output_dict=True`.
        names: the names of the labels.
    """
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


def find_label_id(name: str, ids: Mapping[str, int], where: str) -> int:
    """Return the id of the label `name`.

    `where` is the location of the example. Raises DataError with this location if the model does
    not know the label.
    """
    if name not in ids:
        raise DataError(
            f'{where}: the label "{shorten(name)}" is unknown to the model, which knows '
            f"{quote_names(list(ids))}.{did_you_mean(name, ids)}"
        )
    return ids[name]


def find_unknown_labels(
    labels: Sequence[Sequence[str]], known: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the labels of examples that the model does not know.

    Returns a pair (labels, notes). `notes` contains one note on how many examples have such labels,
    or is empty if the model knows all labels.
    """
    unknown = sorted({name for names in labels for name in names}.difference(known))
    count = sum(not {*unknown}.isdisjoint(names) for names in labels)
    note = (
        f"{count:,} of {len(labels):,} examples have labels that the model does not know, and "
        f"count as wrong: {quote_names(unknown)}"
    )
    return tuple(unknown), (note,) * bool(unknown)


def quote_names(names: Sequence[str]) -> str:
    """Put names in quotes and join them with commas, for a message.

    At most thirty names are included.

    >>> quote_names(["good", "bad"])
    '"good", "bad"'
    """
    shown = ", ".join(f'"{shorten(name, 40)}"' for name in names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def read_prediction(run: str) -> dict[str, Any]:
    """Return the first prediction on the validation data, from `predictions.jsonl` of a run.

    Returns {} if there is none.
    """
    try:
        with open(Path(run) / PREDICTIONS, encoding="utf-8") as file:
            first = json.loads(file.readline() or "{}")
    except (OSError, ValueError, RecursionError):
        return {}
    return first if isinstance(first, dict) else {}
