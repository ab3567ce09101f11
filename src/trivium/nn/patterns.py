"""Kinds of patterns: which keys a query may attend to, beside causality, padding and documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny

from trivium.choice import Choice
from trivium.errors import SpecError
from trivium.nn.part import Count, Part


class Pattern(Choice, Part):
    """A formula of two positions; the same for integers, and for tensors that broadcast."""

    @property
    def reach(self) -> int | None:
        """The farthest distance that is allowed; None: any. With one, `allows` gets columns."""
        return None

    @property
    def of_heads(self) -> tuple[Pattern, ...]:
        """One for every head; or one alone, which is that of them all."""
        return (self,)

    def allows(self, query: Any, key: Any) -> Any:
        """Whether a query may attend to a key, by their positions in the text.

        Of a pattern with a `reach` by their columns in the row, whose distance is the same.
        """
        raise NotImplementedError


class Sliding(Pattern):
    """A position attends to itself and to `window` positions on each allowed side of it."""

    kind: Literal["sliding"] = "sliding"
    window: Count

    @property
    def reach(self) -> int:
        """The window."""
        return self.window

    def allows(self, query: Any, key: Any) -> Any:
        """|query - key| <= window."""
        return abs(query - key) <= self.window


class Strided(Pattern):
    """What is at most `stride` positions away, and what is a multiple of it away.

    `seen` says which of the two sets: those of two heads together reach every position in two
    steps, "both" is their union. An encoder sees the same on the right. It is a
    mask: what is not seen is computed, too.

    Source: Child et al. 2019, section 4.3, the sets A^(1) and A^(2).
    """

    kind: Literal["strided"] = "strided"
    stride: Count
    seen: Literal["near", "far", "both"] = "both"

    def allows(self, query: Any, key: Any) -> Any:
        """|query - key| <= stride, or (query - key) mod stride = 0."""
        near = abs(query - key) <= self.stride
        far = (query - key) % self.stride == 0
        return {"near": near, "far": far, "both": near | far}[self.seen]


class Fixed(Pattern):
    """The block of `stride` positions that a query is in, and the last positions of all blocks.

    `num_summary` is the paper's c: so many last positions of a block are seen by later ones.
    `seen` says which of the two sets, as in `Strided`. Positions count from 0. It is a
    mask: what is not seen is computed, too.

    Source: Child et al. 2019, section 4.3.
    """

    kind: Literal["fixed"] = "fixed"
    stride: Count
    num_summary: Count
    seen: Literal["near", "far", "both"] = "both"

    def check(self) -> None:
        """Raise SpecError for a summary that is longer than a block."""
        if self.num_summary > self.stride:
            raise SpecError(
                f"num_summary={self.num_summary} is more than the stride={self.stride} positions "
                "of a block: give fewer."
            )

    def allows(self, query: Any, key: Any) -> Any:
        """query div stride = key div stride, or key mod stride >= stride - num_summary."""
        near = query // self.stride == key // self.stride
        far = key % self.stride >= self.stride - self.num_summary
        return {"near": near, "far": far, "both": near | far}[self.seen]


class PerHead(Pattern):
    """The pattern of head n is `patterns[n]`: as many as the attention has heads.

    Source: Child et al. 2019, section 4.2, equation 9: heads with different sets.
    """

    kind: Literal["per-head"] = "per-head"
    patterns: Annotated[tuple[SerializeAsAny[Pattern], ...], Field(min_length=1)]

    @property
    def of_heads(self) -> tuple[Pattern, ...]:
        """See `Pattern.of_heads`."""
        return self.patterns
