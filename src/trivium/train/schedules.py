"""Learning-rate schedules as configuration classes: pure functions of step and progress."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

from pydantic import Field

from trivium.choice import Choice
from trivium.config import Config, Fraction


class Schedule(Choice, Config, ABC):
    """The learning rate as a share of its peak: a linear warm-up to 1, then a decay from there."""

    warmup: float | None = Field(
        None,
        ge=0,
        description="steps, or a share below 1; 100 or 0.05, in fine-tuning 0.1, unless set",
    )

    def factor(self, step: int, progress: float, step_share: float = 0.0) -> float:
        """The share of the peak learning rate at one step.

        Args:
            step: counted from 0.
            progress: share of the budget used before this step, 0 to 1.
            step_share: share of the budget that this step uses, as far as it is known. In a warm-up
                that is a share of the run, the step takes the rate at its end, as it does in one
                that is a number of steps.

        >>> tuple(Linear(warmup=2).factor(step, step / 6) for step in range(6))
        (0.5, 1.0, 1.0, 0.75, 0.5, 0.25)
        """
        progress, warmup = min(max(progress, 0.0), 1.0), self.warmup or 0.0
        if warmup >= 1:
            if step < warmup:
                return (step + 1) / warmup
            # Where the warm-up ended, at the average pace of the run so far.
            end = min(warmup * progress / step, 1.0)
        else:
            if progress < warmup:
                # In a budget of minutes the first step, whose share is unknown, moves too.
                return min(max(progress + step_share, 1e-3) / warmup, 1.0)
            end = warmup
        return self.decayed(progress, end)

    @abstractmethod
    def decayed(self, progress: float, warmup_end: float) -> float:
        """The factor after the warm-up, which ended at progress `warmup_end`."""


class Constant(Schedule):
    """1 after the warm-up."""

    kind: Literal["constant"] = "constant"

    def decayed(self, progress: float, warmup_end: float) -> float:
        """1."""
        return 1.0


class Linear(Schedule):
    """From 1 straight to `final`."""

    kind: Literal["linear"] = "linear"
    final: Fraction = Field(0.0, description="last factor, a fraction of the peak")

    def decayed(self, progress: float, warmup_end: float) -> float:
        """final + (1 - final) (1 - p), p the progress since the warm-up."""
        return self.final + (1.0 - self.final) * (1.0 - _since(progress, warmup_end))


class Cosine(Schedule):
    """From 1 to `final` along half a cosine (Loshchilov and Hutter 2016)."""

    kind: Literal["cosine"] = "cosine"
    final: Fraction = Field(0.05, description="last factor, a fraction of the peak")

    def decayed(self, progress: float, warmup_end: float) -> float:
        """final + (1 - final) (1 + cos(pi p)) / 2, p the progress since the warm-up."""
        p = _since(progress, warmup_end)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * p))


class SlantedTriangle(Schedule):
    """Up to 1 in a short first part, and straight down to 1 / `ratio` (ULMFiT).

    It begins at 1 / `ratio`, too. Source: Howard and Ruder 2018, section 3.2, equation 3, where
    `warmup` is cut_frac, 0.1.
    """

    kind: Literal["slanted-triangle"] = "slanted-triangle"
    warmup: float | None = Field(0.1, ge=0, description="steps, or a share below 1")
    ratio: float = Field(32.0, gt=1, description="the peak divided by the lowest rate")

    def factor(self, step: int, progress: float, step_share: float = 0.0) -> float:
        """(1 + p (ratio - 1)) / ratio, p as of a linear schedule that ends at 0."""
        p = super().factor(step, progress, step_share)
        return (1.0 + p * (self.ratio - 1.0)) / self.ratio

    def decayed(self, progress: float, warmup_end: float) -> float:
        """p, which falls straight to 0."""
        return 1.0 - _since(progress, warmup_end)


class InverseSqrt(Schedule):
    """sqrt(warmup / step) (Vaswani et al. 2017, section 5.3, scaled to peak at 1)."""

    kind: Literal["inverse-sqrt"] = "inverse-sqrt"

    def decayed(self, progress: float, warmup_end: float) -> float:
        """Steps are proportional to progress."""
        return math.sqrt(warmup_end / progress) if progress > 0.0 and warmup_end > 0.0 else 1.0


class StableDecay(Schedule):
    """1, then straight down to `final` over the last `decay` of the run (Hu et al. 2024)."""

    kind: Literal["stable-decay"] = "stable-decay"
    decay: Fraction = Field(0.4, description="last part of the run, in which the rate falls")
    final: Fraction = Field(0.05, description="last factor, a fraction of the peak")

    def decayed(self, progress: float, warmup_end: float) -> float:
        """final + (1 - final) min(1, (1 - progress) / decay)."""
        decay = min(self.decay, 1.0 - warmup_end)
        left = 1.0 if decay <= 0.0 else min(1.0, (1.0 - progress) / decay)
        return self.final + (1.0 - self.final) * left


def _since(progress: float, warmup_end: float) -> float:
    """Progress from the end of the warm-up to the end of the run, 0 to 1."""
    return (progress - warmup_end) / (1.0 - warmup_end) if warmup_end < 1.0 else 1.0
