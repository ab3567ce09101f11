"""The reward "regex": whether a response matches a regular expression."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from trivium.rewards import RewardFunction, Sample


class RegexMatch(RewardFunction):
    """A reward of 1 if `re.search` finds the pattern in the response, otherwise 0."""

    kind: Literal["regex"] = "regex"
    pattern: str = Field(description="regular expression; ^ and $ match the ends of the response")

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        """Raise ValueError if the pattern is not a valid regular expression."""
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    def compute_rewards(self, samples: Sequence[Sample]) -> list[float]:
        """Return 1.0 for every response that matches the pattern, otherwise 0.0."""
        return [float(re.search(self.pattern, one.response) is not None) for one in samples]
