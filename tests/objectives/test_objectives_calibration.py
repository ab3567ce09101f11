"""Calibration of predicted classes: coverage, expected calibration error, suggested threshold."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from trivium.files import write_json
from trivium.objectives.calibration import Calibration, compute_calibration

PREDICTIONS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from([0.25, 0.5, 0.9]) | st.floats(0.25, 1.0, width=32, allow_subnormal=False),
    ),
    min_size=1,
    max_size=300,
)


def expected_error(right, scores) -> float:
    """The sum over bins (m - 1) / 15 < p <= m / 15 of |accuracy - confidence| n_m / N."""
    total = 0.0
    for m in range(15):
        inside = [(r, p) for r, p in zip(right, scores) if m / 15 < p <= (m + 1) / 15]
        if inside:
            accuracy = sum(r for r, _ in inside) / len(inside)
            confidence = sum(p for _, p in inside) / len(inside)
            total += abs(accuracy - confidence) * len(inside) / len(right)
    return total


def at(threshold, right, scores) -> tuple[float, float]:
    """Coverage and accuracy of the predictions that a threshold keeps."""
    kept = [r for r, p in zip(right, scores) if p >= threshold]
    return len(kept) / len(right), sum(kept) / len(kept)


@settings(max_examples=200, deadline=None)
@given(PREDICTIONS)
def test_points_are_attained_and_coverage_falls_with_the_threshold(predictions):
    right, scores = zip(*predictions)
    found = compute_calibration(right, scores)
    assert found.calibration_error == pytest.approx(expected_error(right, scores), abs=1e-9)
    thresholds, coverages, _ = zip(*found.points)
    assert list(thresholds) == sorted({*thresholds}, reverse=True)
    assert list(coverages) == sorted({*coverages})
    assert coverages[-1] == 1.0
    assert thresholds[0] == max(scores)
    for threshold, coverage, accuracy in found.points:
        assert (coverage, accuracy) == pytest.approx(at(threshold, right, scores), abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(PREDICTIONS)
def test_the_suggested_threshold_is_the_lowest_that_halves_the_errors(predictions):
    right, scores = zip(*predictions)
    found, errors = compute_calibration(right, scores), right.count(False)

    def halves(threshold: float) -> bool:
        kept = [r for r, p in predictions if p >= threshold]
        is_enough = len(kept) >= max(10, 0.1 * len(right))
        return is_enough and 2 * kept.count(False) * len(right) <= errors * len(kept)

    candidates = [one for one in scores if errors and halves(one)]
    assert (found.threshold is None) == (not candidates)
    if found.threshold is not None:
        assert halves(found.threshold)
        kept, best = at(found.threshold, right, scores), at(min(candidates), right, scores)
        assert kept == best
        assert (found.coverage, found.accuracy) == pytest.approx(kept, abs=1e-12)


def test_the_calibration_error_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.2, 1.0, 5000)
    right = rng.uniform(size=5000) < scores**2
    accuracy, confidence = calibration_curve(right, scores, n_bins=15)
    counts, _ = np.histogram(scores, np.linspace(0, 1, 16))
    ece = np.abs(accuracy - confidence) @ counts[counts > 0] / 5000
    assert compute_calibration(right, scores).calibration_error == pytest.approx(ece, abs=1e-12)


def test_numbers_by_hand():
    scores = [0.9, 0.8, 0.7, 0.6]
    found = compute_calibration([True, True, False, False] * 5, scores * 5)
    assert found.points == ((0.9, 0.25, 1.0), (0.8, 0.5, 1.0), (0.7, 0.75, 2 / 3), (0.6, 1.0, 0.5))
    # 0.6 is the upper edge of a bin and inside it; 0.7, 0.8 and 0.9 are in one bin each.
    assert found.calibration_error == pytest.approx((0.1 + 0.2 + 0.7 + 0.6) / 4)
    assert (found.threshold, found.coverage, found.accuracy) == (0.75, 0.5, 1.0)
    # Fewer than ten would be kept; the most certain ones are wrong.
    assert compute_calibration([True, True, False, False] * 4, scores * 4).threshold is None
    assert compute_calibration([False, True, True, False] * 5, scores * 5).threshold is None


@pytest.mark.parametrize(
    ("right", "scores", "points", "error"),
    [
        ([True], [0.8], ((0.8, 1.0, 1.0),), 0.2),
        ([False], [0.8], ((0.8, 1.0, 0.0),), 0.8),
        ([True] * 3, [1.0, 1.0, 0.5], ((1.0, 2 / 3, 1.0), (0.5, 1.0, 1.0)), 0.5 / 3),
        ([False] * 2, [0.7, 0.5], ((0.7, 0.5, 0.0), (0.5, 1.0, 0.0)), 0.6),
        ([True, False], [0.9, 0.9], ((0.9, 1.0, 0.5),), 0.4),  # equal: kept together
    ],
)
def test_no_threshold_is_suggested_where_none_halves_the_errors(right, scores, points, error):
    found = compute_calibration(right, scores)
    assert np.allclose(found.points, points)
    assert found.calibration_error == pytest.approx(error)
    assert found.threshold is None
    assert len(found.render()) == 2


def test_a_threshold_that_keeps_few_examples_is_not_suggested():
    right, scores = [n % 2 == 0 for n in range(180)], [0.5] * 180
    few, enough = (
        compute_calibration([True] * 19 + right, [0.98] * 19 + scores),
        [True] * 20 + right,
    )
    assert few.threshold is None
    assert compute_calibration(enough, [0.98] * 20 + scores).threshold == 0.74


def test_scores_that_differ_in_their_last_digits_are_told_apart(tmp_path):
    high, low = np.nextafter(np.float32(1), np.float32(0)), np.float32(0.9999998)
    found = compute_calibration([True] * 10 + [False] * 5, [float(high)] * 10 + [float(low)] * 5)
    assert found.threshold is not None
    assert low < found.threshold <= high
    assert str(found.threshold) in found.render()[-1]  # as it is typed
    write_json(tmp_path / "a.json", found.points)
    large = compute_calibration(np.arange(5000) % 3 > 0, np.linspace(0.3, 1.0, 5000))
    assert len(large.points) == 100
    assert len(json.dumps(large.points)) < 10_000


def test_lines_say_how_predict_takes_the_threshold(monkeypatch):
    found = Calibration(0.125, ((0.9, 0.5, 1.0), (0.5, 1.0, 0.75)), 0.83, 0.5, 1.0)
    coverage, error, threshold = found.render()
    assert "100% 0.7500, 50% 1.0000" in coverage
    assert "0.1250 (15 probability bins" in error
    assert threshold.startswith("try trivium predict with --threshold 0.83 --below other")
    monkeypatch.setenv("TRIVIUM_LANGUAGE", "zh")
    assert "--threshold 0.83 --below other" in found.render()[-1]
    assert "覆盖率" in found.render()[0]
