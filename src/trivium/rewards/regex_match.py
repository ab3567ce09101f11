"""Whether a response has a form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from trivium.rewards import RewardFunction, Sample


class RegexMatch(RewardFunction):
    """1 for a response in which the pattern is found, as `re.search` does."""

    kind: Literal["regex"] = "regex"
    pattern: str = Field(description="regular expression; ^ and $ are the ends of the response")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        return pattern

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """Return 1 or 0 for every sample."""
        return [float(re.search(self.pattern, one.response) is not None) for one in samples]
