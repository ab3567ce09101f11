"""Detection of gradient-norm spikes. A run can skip such steps (`train.skip_spikes`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

SPIKE_WINDOW = 100
"""The number of recent gradient norms that a new gradient norm is compared with."""


def is_spike(norm: float, recent_norms: Sequence[float], factor: float) -> bool:
    """Return whether a gradient norm exceeds `factor` times the median of the recent norms.

    Non-finite norms are excluded from the median. Until `SPIKE_WINDOW` norms have been seen, only a
    non-finite norm is a spike. The recent norms include earlier spikes. Norms that stay high
    therefore soon stop counting as spikes, and so do non-finite norms once half of the recent norms
    are non-finite.
    """
    finite = [one for one in recent_norms if math.isfinite(one)]
    if not math.isfinite(norm):
        return 2 * len(finite) > len(recent_norms)
    return len(recent_norms) >= SPIKE_WINDOW and norm > factor * statistics.median(finite)
