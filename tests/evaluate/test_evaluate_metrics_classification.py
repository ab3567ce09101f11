"""Classes, labels and numbers against scikit-learn and SciPy called directly."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn_metrics

from trivium.errors import DataError, MissingExtraError
from trivium.evaluate.classification_metrics import (
    classification_metrics,
    label_indices,
    multi_label_metrics,
    regression_metrics,
)

NAMES = ["anger", "joy", "fear", "none", "never seen"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_classes_agree_with_scikit_learn(pairs: list[tuple[int, int]]):
    gold, predicted = (list(column) for column in zip(*pairs))
    found = classification_metrics(gold, predicted, NAMES)
    numbers = found.to_dict()
    assert numbers["accuracy"] == sklearn_metrics.accuracy_score(gold, predicted)
    for average in ("macro", "micro", "weighted"):
        expected = sklearn_metrics.f1_score(gold, predicted, average=average, zero_division=0.0)
        assert numbers[f"{average}_f1"] == pytest.approx(expected, abs=1e-15)
    if len({*gold, *predicted}) > 1:
        expected = sklearn_metrics.matthews_corrcoef(gold, predicted)
        assert numbers["matthews"] == expected
    matrix = sklearn_metrics.confusion_matrix(gold, predicted, labels=range(5))
    assert np.array_equal(found.confusion, matrix)
    report = sklearn_metrics.classification_report(
        gold,
        predicted,
        labels=range(5),
        target_names=NAMES,
        output_dict=True,
        zero_division=0.0,
    )
    for score in found.per_class:
        expected = report[score.name]
        assert score.precision == expected["precision"]
        assert score.recall == expected["recall"]
        assert score.f1 == expected["f1-score"]
        assert score.support == expected["support"]


def test_the_numbers_of_classes_by_hand():
    found = classification_metrics([0, 0, 0, 1], [0, 0, 1, 1], ["a", "b", "c"])
    assert found.main == ("accuracy", 0.75)
    assert found.confusion == ((2, 1, 0), (0, 1, 0), (0, 0, 0))
    assert found.macro_f1 == pytest.approx((0.8 + 2 / 3) / 2)  # c is neither right nor predicted.
    head, first, *_ = found.table()
    assert head == ("Class", "Precision", "Recall", "F1", "Support")
    assert first == ("a", "1.0000", "0.6667", "0.8000", "3")
    assert found.names == ("a", "b", "c")
    json.dumps(found.to_dict(), allow_nan=False)


def test_one_class_only():
    found = classification_metrics([2, 2], [2, 2], ["a", "b", "c"])
    assert (found.accuracy, found.macro_f1, found.matthews) == (1.0, 1.0, 0.0)
    alone = classification_metrics([0], [0], ["a"])
    assert (alone.accuracy, alone.confusion) == (1.0, ((1,),))


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "no labels"),
        ([0, 1], [0], "1 predictions for 2 labels"),
        ([0, 2], [0, 1], 'example 2 has class 2; there are classes 0 to 1: "a", "b"'),
        ([0, -1], [0, 1], "example 2 has class -1"),
        ([0, 1], [0, 0.5], "example 2 has class 0.5"),
        ([0, 1], [0, float("nan")], "example 2 has class nan"),
    ],
)
def test_classes_that_cannot_be_compared(gold: list, predicted: list, message: str):
    with pytest.raises(DataError, match=message):
        classification_metrics(gold, predicted, ["a", "b"])


def test_labels_get_their_places():
    assert label_indices(["b", "a", "b"], ["a", "b"]) == [1, 0, 1]


def test_an_unknown_label_is_told_with_the_known_ones():
    with pytest.raises(DataError) as caught:
        label_indices(["joy", "angre"], NAMES, where=["v.tsv, line 1", "v.tsv, line 2"])
    message = str(caught.value)
    assert message.startswith('v.tsv, line 2: the label "angre" is unknown')
    assert all(f'"{name}"' in message for name in NAMES)
    assert 'Did you mean "anger"?' in message
    with pytest.raises(DataError, match="and 170 more"):
        label_indices(["x"], [f"class {number}" for number in range(200)])


@pytest.mark.parametrize("labels", [1, 2, 5])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_labels_agree_with_scikit_learn(labels: int, share: float):
    chance = np.random.default_rng(labels)
    gold, predicted = (chance.random((31, labels)) < part for part in (share, 0.5))
    found = multi_label_metrics(gold, predicted.astype(float), NAMES[:labels])
    # A column of zeros more keeps scikit-learn from seeing one label as two classes.
    wide, guessed = (np.pad(part, ((0, 0), (0, 1))) for part in (gold, predicted))
    of = {"labels": range(labels), "zero_division": 0.0}
    for average in ("macro", "micro"):
        expected = sklearn_metrics.f1_score(wide, guessed, average=average, **of)
        assert found.to_dict()[f"{average}_f1"] == pytest.approx(expected, abs=1e-15)
    expected = sklearn_metrics.accuracy_score(wide, guessed)
    assert found.subset_accuracy == pytest.approx(expected)
    columns = sklearn_metrics.precision_recall_fscore_support(wide, guessed, average=None, **of)
    rows = [(one.precision, one.recall, one.f1, one.support) for one in found.per_class]
    assert np.allclose(rows, np.transpose(columns), atol=1e-15)
    assert found.main == ("micro_f1", found.micro_f1)
    assert len(found.table()) == labels + 1


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "no texts"),
        ([[0, 1]], [[0, 1], [1, 1]], "2 predictions for 1 texts"),
        ([[0, 1, 1]], [[0, 1, 1]], r"labels of shape \(1, 3\) for 2 names"),
        ([[0, 2]], [[0, 1]], "0 or 1"),
    ],
)
def test_labels_that_cannot_be_compared(gold: list, predicted: list, message: str):
    with pytest.raises(DataError, match=message):
        multi_label_metrics(gold, predicted, ["a", "b"])


@pytest.mark.parametrize("seed", range(5))
def test_numbers_agree_with_their_formulas(seed: int):
    chance = np.random.default_rng(seed)
    gold = chance.integers(0, 6, 37).astype(float)  # With ties.
    predicted = gold + chance.normal(0, 2, 37)
    found = regression_metrics(gold, predicted.tolist())
    assert found.pearson == pytest.approx(np.corrcoef(gold, predicted)[0, 1])
    ranks = [stats.rankdata(values) for values in (gold, predicted)]
    assert found.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1])
    errors = predicted - gold
    assert found.mse == pytest.approx((errors**2).mean())
    assert found.mae == pytest.approx(np.abs(errors).mean())
    assert found.r2 == pytest.approx(1 - (errors**2).sum() / ((gold - gold.mean()) ** 2).sum())
    assert found.pearson == stats.pearsonr(gold, predicted).statistic
    assert found.main == ("pearson", found.pearson)
    assert len(found.table()) == len(found.to_dict()) + 1


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [([1.0, 2.0], [3.0, 3.0]), ([2.0, 2.0], [1.0, 3.0]), ([1.0], [2.0]), ([5.0], [5.0])],
)
def test_a_correlation_without_meaning_is_zero(gold: list[float], predicted: list[float]):
    found = regression_metrics(gold, predicted)
    assert (found.pearson, found.spearman) == (0.0, 0.0)
    json.dumps(found.to_dict(), allow_nan=False)


def test_numbers_that_are_almost_equal_raise_no_warning():
    found = regression_metrics([1.0, 2.0, 4.0], [1.0, 1.0 + 1e-16, 1.0 + 2e-14])
    assert -1.0 <= found.pearson <= 1.0


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "no values"),
        ([1.0, 2.0], [1.0], "1 predictions for 2 values"),
        ([1.0, float("nan")], [1.0, 2.0], "right value 2 is nan"),
        ([1.0, 2.0], [float("inf"), 2.0], "prediction 1 is inf"),
        ([1e200, 2.0], [-1e200, 2.0], "too large"),
    ],
)
def test_numbers_that_cannot_be_compared(gold: list, predicted: list, message: str):
    with pytest.raises(DataError, match=message):
        regression_metrics(gold, predicted)


@pytest.mark.parametrize("missing", ["sklearn", "scipy"])
def test_a_missing_library_is_told_with_what_installs_it(monkeypatch, missing: str):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"trivium\[metrics\]"):
        regression_metrics([1.0, 2.0], [1.0, 2.0])
