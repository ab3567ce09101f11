"""T5's trained bias of distances."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

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

    @model_validator(mode="after")
    def _buckets_reach_their_end(self) -> Self:
        # Of a decoder half of the buckets are one distance wide.
        if self.max_distance <= self.num_buckets // 2:
            raise SpecError(f"max_distance={self.max_distance} must exceed num_buckets / 2.")
        return self
