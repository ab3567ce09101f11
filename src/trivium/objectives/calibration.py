"""Calibration of a classifier: the calibration error, accuracy by coverage, and a threshold.

A prediction is accepted if its probability is at least the threshold. Coverage is the fraction of
predictions that are accepted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from trivium.messages import translated

_BINS = 15
_MAX_POINTS = 100
_MIN_KEPT, _MIN_COVERAGE = 10, 0.1
_RULE = (
    "the lowest threshold that halves the error rate and keeps at least a tenth of the examples, "
    "and at least ten"
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The expected calibration error, accuracy by coverage, and a suggested threshold.

    Source of the expected calibration error: Guo et al. 2017, equation 3.

    Args:
        calibration_error: the expected calibration error, from 0 to 1. Predictions are grouped into
            equal-width bins by probability. In each bin, the absolute difference between accuracy
            and mean probability is computed. The error is the mean over the bins, weighted by the
            number of predictions in each bin.
        points: at most 100 tuples (threshold, coverage, accuracy), in order of decreasing
            threshold. The last threshold accepts all predictions.
        threshold: the suggested threshold; None if no threshold satisfies `rule`.
        coverage: the coverage at `threshold`.
        accuracy: the accuracy of the predictions that are accepted at `threshold`.
        bins: the number of bins for the calibration error.
        rule: a description of how the threshold is chosen.
    """

    calibration_error: float
    points: tuple[tuple[float, float, float], ...]
    threshold: float | None = None
    coverage: float | None = None
    accuracy: float | None = None
    bins: int = _BINS
    rule: str = _RULE

    def render(self) -> list[str]:
        """Render the calibration as two or three lines of text, in the user's language.

        The third line is about the threshold, if there is one.
        """
        targets = (1.0, 0.75, 0.5, 0.25)
        chosen = (next(point for point in self.points if point[1] >= target) for target in targets)
        known = {coverage: accuracy for _, coverage, accuracy in chosen}
        points = ", ".join(f"{coverage:.0%} {accuracy:.4f}" for coverage, accuracy in known.items())
        values = asdict(self) | {"points": points}
        names = ["coverage", "error", *(["threshold"] if self.threshold is not None else [])]
        return [translated(f"calibration.{name}", **values) for name in names]


def compute_calibration(is_correct: ArrayLike, probabilities: ArrayLike) -> Calibration:
    """Compute the calibration of N >= 1 predictions.

    Args:
        is_correct: whether each prediction is correct, bool [N].
        probabilities: the probability of each predicted class, [N].
    """
    scores = np.asarray(probabilities, dtype=np.float64)
    order = np.argsort(-scores, kind="stable")
    scores, correct = scores[order], np.asarray(is_correct, dtype=bool)[order]
    total = len(scores)
    edges = np.linspace(0.0, 1.0, _BINS + 1)[1:-1]
    bins = np.digitize(scores, edges, right=True)  # each bin contains its upper edge
    gaps = np.bincount(bins, weights=correct - scores)
    last = np.flatnonzero(np.append(scores[:-1] != scores[1:], True))  # keep all ties
    thresholds, kept, num_right = scores[last], last + 1, np.cumsum(correct)[last]
    wrong, errors = kept - num_right, total - int(num_right[-1])
    halved = 2 * wrong * total <= errors * kept
    best = np.flatnonzero(halved & (errors > 0) & (kept >= max(_MIN_KEPT, _MIN_COVERAGE * total)))
    columns = np.stack([thresholds, kept / total, num_right / kept], axis=1)
    shown = np.linspace(0, len(last) - 1, min(len(last), _MAX_POINTS)).round().astype(int)
    points = tuple((low, coverage, accuracy) for low, coverage, accuracy in columns[shown].tolist())
    result = Calibration(float(np.abs(gaps).sum()) / total, points)
    if not len(best):
        return result
    threshold = _round_midpoint(*thresholds[[best[-1] + 1, best[-1]]].tolist())
    _, coverage, accuracy = columns[best[-1]].tolist()
    return Calibration(result.calibration_error, points, threshold, coverage, accuracy)


def _round_midpoint(low: float, high: float) -> float:
    """Round the midpoint of `low` and `high` to as few decimal places as possible, at least two.

    The result is greater than `low` and at most `high`. Returns `high` if no rounded value is in
    this range.
    """
    rounded = (round((low + high) / 2, digits) for digits in range(2, 17))
    return next((value for value in rounded if low < value <= high), high)
