"""No feed-forward network, for blocks that are a mixer alone."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from trivium.spec.feed_forwards import Positionwise


class Nothing(Positionwise):
    """A block is its mixer in a residual connection, as in Mamba (Gu and Dao 2023, figure 3)."""

    computes: ClassVar[bool] = False
    kind: Literal["none"] = "none"

    def kept_numbers(self, width: int) -> int:
        """None."""
        return 0

    def narrower(self, fraction: float) -> Self:
        """The same."""
        return self
