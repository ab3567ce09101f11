"""The reward "length": how close the length of a response is to a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from trivium.rewards import RewardFunction, Sample


class TargetLength(RewardFunction):
    """A reward for responses of a certain length: max(0, 1 - |n - target| / target).

    n is the length of the response in characters. The reward is 1 at the target length. It is 0 for
    an empty response, and for responses of at least twice the target length.
    """

    kind: Literal["length"] = "length"
    target: int = Field(gt=0, description="target length of a response in characters")

    def compute_rewards(self, samples: Sequence[Sample]) -> list[float]:
        """Return the reward of each response, from 0 to 1. It is 1 at the target length."""
        lengths = (len(one.response) for one in samples)
        return [max(0.0, 1.0 - abs(length - self.target) / self.target) for length in lengths]
