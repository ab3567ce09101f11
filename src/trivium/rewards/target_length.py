"""How near the length of a response is to a wanted one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from trivium.rewards import RewardFunction, Sample


class TargetLength(RewardFunction):
    """max(0, 1 - |n - target| / target) for n characters: 1 at the target, 0 at twice as many."""

    kind: Literal["length"] = "length"
    target: int = Field(gt=0, description="wanted characters of a response")

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """Return numbers from 0 to 1."""
        lengths = (len(one.response) for one in samples)
        return [max(0.0, 1.0 - abs(length - self.target) / self.target) for length in lengths]
