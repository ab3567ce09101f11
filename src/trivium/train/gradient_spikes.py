"""Spikes of the gradient norm, whose steps a run can skip (`train.skip_spikes`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

SPIKE_WINDOW = 100
"""The number of last steps whose gradient norms a new norm is compared with."""


def is_spike(norm: float, last_norms: Sequence[float], factor: float) -> bool:
    """Return whether a gradient norm is more than `factor` times the median of the last norms.

    Norms that are not finite are left out of the median. While there are fewer than `SPIKE_WINDOW`
    norms, only a norm that is not finite is a spike. Spikes enter the window, too, so that norms
    that stay high soon are not spikes any more, and a norm that is not finite is not a spike if
    half of the last norms are not finite either.
    """
    finite = [one for one in last_norms if math.isfinite(one)]
    if not math.isfinite(norm):
        return 2 * len(finite) > len(last_norms)
    return len(last_norms) >= SPIKE_WINDOW and norm > factor * statistics.median(finite)
