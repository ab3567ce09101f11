"""Learning-rate schedules as pure functions: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from typing import Literal

Kind = Literal["constant", "linear", "cosine", "inverse-sqrt", "stable-decay"]


def learning_rate_factor(
    kind: Kind,
    step: int,
    progress: float,
    *,
    warmup: float = 0,
    decay: float = 0.4,
    final: float = 0.0,
) -> float:
    """The share of the peak learning rate at one step.

    Every kind rises linearly over the warm-up. Then, with p the progress:

    - constant: 1
    - linear: from 1 to `final`, straight
    - cosine: final + (1 - final) (1 + cos(pi p)) / 2
    - inverse-sqrt: sqrt(warmup / step) (Vaswani et al. 2017, section 5.3, scaled to peak at 1)
    - stable-decay: 1, and straight down to `final` over the last `decay` of the run
      (Hu et al. 2024, warm-up/stable/decay)

    Args:
        step: counted from 0.
        progress: share of the budget used before this step, 0 to 1.
        warmup: steps, or below 1 a fraction of the run.
        decay: fraction of the run.
        final: fraction of the peak.

    >>> [learning_rate_factor("linear", s, s / 4, warmup=2) for s in range(4)]
    [0.5, 0.75, 0.5, 0.25]
    """
    progress = min(max(progress, 0.0), 1.0)
    rise = 1.0
    if warmup >= 1:
        rise = min(1.0, (step + 1) / warmup)
    elif warmup > 0:
        # A run's first step moves too, however short the run.
        rise = min(1.0, max(progress, 1e-3) / warmup)
    match kind:
        case "constant":
            fall = 1.0
        case "linear":
            fall = final + (1.0 - final) * (1.0 - progress)
        case "cosine":
            fall = final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "inverse-sqrt":
            reference = max(warmup, 1.0)
            fall = math.sqrt(reference / max(step + 1, reference))
        case "stable-decay":
            left = 1.0 if decay == 0.0 else min(1.0, (1.0 - progress) / decay)
            fall = final + (1.0 - final) * left
    return rise * fall
