"""Learning rate schedules as configuration classes: pure functions of step and progress."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

from pydantic import Field

from trivium.choice import Choice
from trivium.config import Config, Fraction


class Schedule(Choice, Config, ABC):
    """The learning rate as a factor of its peak: a linear warm-up to 1, followed by a decay."""

    warmup: float | None = Field(
        None,
        ge=0,
        description="steps, or a fraction of the budget below 1 (default: 100 or 0.05, in "
        "fine-tuning 0.1)",
    )

    def factor(self, step: int, progress: float, step_fraction: float = 0.0) -> float:
        """Return the learning rate of one step as a factor of the peak learning rate.

        Args:
            step: the step, counted from 0.
            progress: the fraction of the budget used before this step, 0 to 1.
            step_fraction: the fraction of the budget that this step uses; 0 if it is unknown. It is
                needed if the warm-up is a fraction of the budget: each step then uses the learning
                rate for the end of the step, as with a warm-up in steps.

        >>> tuple(Linear(warmup=2).factor(step, step / 6) for step in range(6))
        (0.5, 1.0, 1.0, 0.75, 0.5, 0.25)
        """
        progress, warmup = min(max(progress, 0.0), 1.0), self.warmup or 0.0
        if warmup >= 1:
            if step < warmup:
                return (step + 1) / warmup
            # The progress at which the warm-up ended, at the average pace of the run so far.
            end = min(warmup * progress / step, 1.0)
        else:
            if progress < warmup:
                # With a budget in minutes, the fraction of the first step is unknown. Its learning
                # rate must not be 0.
                return min(max(progress + step_fraction, 1e-3) / warmup, 1.0)
            end = warmup
        return self.decay_factor(progress, end)

    @abstractmethod
    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """Return the factor for a step after the warm-up.

        `progress` is the fraction of the budget used before this step. `warmup_end` is the fraction
        of the budget that the warm-up used.
        """


class Constant(Schedule):
    """A constant learning rate after the warm-up."""

    kind: Literal["constant"] = "constant"

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """Return 1, since the learning rate stays at its peak."""
        return 1.0


class Linear(Schedule):
    """A linear decay from 1 to `final`."""

    kind: Literal["linear"] = "linear"
    final: Fraction = Field(0.0, description="last factor, a fraction of the peak")

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """Return the factor of a linear decay, final + (1 - final) (1 - p).

        p is the progress since the end of the warm-up, 0 to 1.
        """
        return self.final + (1.0 - self.final) * (1.0 - _decay_progress(progress, warmup_end))


class Cosine(Schedule):
    """A cosine decay from 1 to `final` (Loshchilov and Hutter 2016)."""

    kind: Literal["cosine"] = "cosine"
    final: Fraction = Field(0.05, description="last factor, a fraction of the peak")

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """Return the factor of a cosine decay, final + (1 - final) (1 + cos(pi p)) / 2.

        p is the progress since the end of the warm-up, 0 to 1.
        """
        p = _decay_progress(progress, warmup_end)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * p))


class SlantedTriangle(Schedule):
    """The slanted triangular schedule of ULMFiT: a short linear increase and a long linear decay.

    The factor starts and ends at 1 / `ratio`. Source: Howard and Ruder 2018, section 3.2, equation
    3, where `warmup` is called cut_frac (0.1).
    """

    kind: Literal["slanted-triangle"] = "slanted-triangle"
    warmup: float | None = Field(
        0.1, ge=0, description="steps, or a fraction of the budget below 1"
    )
    ratio: float = Field(32.0, gt=1, description="the peak divided by the lowest rate")

    def factor(self, step: int, progress: float, step_fraction: float = 0.0) -> float:
        """Return the factor (1 + p (ratio - 1)) / ratio.

        p rises linearly from 0 to 1 during the warm-up, and then falls linearly to 0.
        """
        p = super().factor(step, progress, step_fraction)
        return (1.0 + p * (self.ratio - 1.0)) / self.ratio

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """Return the factor of a linear decay from 1 to 0."""
        return 1.0 - _decay_progress(progress, warmup_end)


class InverseSqrt(Schedule):
    """The inverse square root schedule, sqrt(warmup / step), scaled to a peak of 1.

    Source: Vaswani et al. 2017, section 5.3.
    """

    kind: Literal["inverse-sqrt"] = "inverse-sqrt"

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """Return the inverse square root factor, sqrt(warmup_end / progress).

        Progress can replace steps in this formula, since both are proportional.
        """
        return math.sqrt(warmup_end / progress) if progress > 0.0 and warmup_end > 0.0 else 1.0


class StableDecay(Schedule):
    """Warmup-stable-decay (WSD): 1, then a linear decay to `final` at the end of the run.

    `decay` is the fraction of the run in which the learning rate decays. Source: Hu et al. 2024.
    """

    kind: Literal["stable-decay"] = "stable-decay"
    decay: Fraction = Field(0.4, description="final fraction of the run, in which the rate falls")
    final: Fraction = Field(0.05, description="last factor, a fraction of the peak")

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """Return 1 until the final decay, then the factor of a linear decay to `final`.

        The factor is final + (1 - final) min(1, (1 - progress) / decay).
        """
        decay = min(self.decay, 1.0 - warmup_end)
        left = 1.0 if decay <= 0.0 else min(1.0, (1.0 - progress) / decay)
        return self.final + (1.0 - self.final) * left


def _decay_progress(progress: float, warmup_end: float) -> float:
    """Return the progress since the end of the warm-up, 0 to 1."""
    return (progress - warmup_end) / (1.0 - warmup_end) if warmup_end < 1.0 else 1.0
