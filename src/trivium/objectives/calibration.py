"""How far the probabilities of predicted classes can be trusted: coverage, calibration, threshold.

Coverage is the share of examples whose prediction is kept, which are those at or above a threshold.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from trivium.messages import translated

_BINS = 15
_MAX_POINTS = 100
_LEAST_KEPT, _LEAST_COVERAGE = 10, 0.1
_RULE = (
    "the lowest threshold that halves the share of wrong predictions and keeps at least a tenth of "
    "the examples and at least ten"
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Accuracy by coverage, the expected calibration error, and a suggested threshold.

    Source: Guo et al. 2017, equation 3, for the expected calibration error.

    Args:
        calibration_error: the mean difference of accuracy and probability over equal-width bins of
            the probability, weighted by the number of examples; from 0 to 1.
        points: (threshold, coverage, accuracy) from the most certain predictions to all, at most a
            hundred.
        threshold: the threshold of `rule`; None where no threshold fulfils it.
        coverage: the coverage of `threshold`.
        accuracy: the accuracy of the predictions that `threshold` keeps.
        bins: the number of bins of the calibration error.
        rule: how the threshold is chosen.
    """

    calibration_error: float
    points: tuple[tuple[float, float, float], ...]
    threshold: float | None = None
    coverage: float | None = None
    accuracy: float | None = None
    bins: int = _BINS
    rule: str = _RULE

    def lines(self) -> list[str]:
        """Return two or three lines for the user, in the reader's language."""
        shares = (1.0, 0.75, 0.5, 0.25)
        chosen = (next(one for one in self.points if one[1] >= share) for share in shares)
        known = {coverage: accuracy for _, coverage, accuracy in chosen}
        points = ", ".join(f"{one:.0%} {accuracy:.4f}" for one, accuracy in known.items())
        facts = asdict(self) | {"points": points}
        names = ["coverage", "error", *(["threshold"] if self.threshold is not None else [])]
        return [translated(f"calibration.{name}", **facts) for name in names]


def calibration_of(right: ArrayLike, probabilities: ArrayLike) -> Calibration:
    """Return the calibration of one or more predictions.

    Args:
        right: whether each prediction is right, [N].
        probabilities: the probability of each predicted class, [N].
    """
    scores = np.asarray(probabilities, dtype=np.float64)
    order = np.argsort(-scores, kind="stable")
    scores, correct = scores[order], np.asarray(right, dtype=bool)[order]
    total = len(scores)
    edges = np.linspace(0.0, 1.0, _BINS + 1)[1:-1]
    bins = np.digitize(scores, edges, right=True)  # a bin contains its upper edge
    gaps = np.bincount(bins, weights=correct - scores)
    last = np.flatnonzero(np.append(scores[:-1] != scores[1:], True))  # equal ones stay together
    thresholds, kept, num_right = scores[last], last + 1, np.cumsum(correct)[last]
    wrong, errors = kept - num_right, total - int(num_right[-1])
    halved = 2 * wrong * total <= errors * kept
    best = np.flatnonzero(
        halved & (errors > 0) & (kept >= max(_LEAST_KEPT, _LEAST_COVERAGE * total))
    )
    columns = np.stack([thresholds, kept / total, num_right / kept], axis=1)
    shown = np.linspace(0, len(last) - 1, min(len(last), _MAX_POINTS)).round().astype(int)
    points = tuple((one, coverage, accuracy) for one, coverage, accuracy in columns[shown].tolist())
    result = Calibration(float(np.abs(gaps).sum()) / total, points)
    if not len(best):
        return result
    threshold = _shortest_between(*thresholds[[best[-1] + 1, best[-1]]].tolist())
    _, coverage, accuracy = columns[best[-1]].tolist()
    return Calibration(result.calibration_error, points, threshold, coverage, accuracy)


def _shortest_between(low: float, high: float) -> float:
    """Return a number in (low, high] near the middle, with few decimals."""
    rounded = (round((low + high) / 2, digits) for digits in range(2, 17))
    return next((one for one in rounded if low < one <= high), high)
