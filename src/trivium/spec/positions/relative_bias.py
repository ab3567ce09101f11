"""T5's trained bias of distances."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trivium.errors import SpecError
from trivium.spec.part import Count
from trivium.spec.positions import Positions


class RelativeBias(Positions):
    """A trained number for each head and bucket of distances, added to scores (T5, section 2.1).

    Near distances have a bucket each, farther ones share buckets that widen logarithmically up to
    `max_distance`. One table a stack.
    """

    has_scores: ClassVar[bool] = True
    divides: ClassVar[bool] = True
    kind: Literal["relative-bias"] = "relative-bias"
    num_buckets: Annotated[int, Field(ge=4, lt=2**31, multiple_of=2)] = 32
    max_distance: Count = 128

    def check(self) -> None:
        """Raise SpecError where the buckets do not reach the maximum distance."""
        # Of a decoder half of the buckets are one distance wide.
        if self.max_distance <= self.num_buckets // 2:
            raise SpecError(f"max_distance={self.max_distance} must exceed num_buckets / 2.")
