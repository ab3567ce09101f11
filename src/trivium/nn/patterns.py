"""Attention patterns: masks in addition to causality, padding and document boundaries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny

from trivium.choice import Choice
from trivium.errors import SpecError
from trivium.nn.part import Count, Part


class Pattern(Choice, Part):
    """Attention pattern: a rule that decides which keys a query may attend to."""

    @property
    def reach(self) -> int | None:
        """The largest distance between a query and a key it may attend to; None: unlimited."""
        return None

    @property
    def per_head(self) -> tuple[Pattern, ...]:
        """One pattern per head, or a single pattern for all heads."""
        return (self,)

    def allows(self, query: Any, key: Any) -> Any:
        """Return whether a query may attend to a key, given their positions in the text.

        Positions are integers or tensors that broadcast. A pattern with a `reach` receives columns
        in the row instead of positions; distances between columns are the same.
        """
        raise NotImplementedError


class Sliding(Pattern):
    """Sliding window: a query attends to itself and `window` positions on each allowed side."""

    kind: Literal["sliding"] = "sliding"
    window: Count

    @property
    def reach(self) -> int:
        """The window size."""
        return self.window

    def allows(self, query: Any, key: Any) -> Any:
        """Return |query - key| <= window."""
        return abs(query - key) <= self.window


class Strided(Pattern):
    """Strided pattern: keys at most `stride` positions away, or a multiple of `stride` away.

    `visible` selects the near set, the far set or their union "both". A head with the near set and
    a head with the far set together reach every position in two steps. In an encoder the same
    distances to later keys are allowed. The pattern is only a mask: the scores of masked keys are
    computed, too.

    Source: Child et al. 2019, section 4.3, the sets A^(1) and A^(2).
    """

    kind: Literal["strided"] = "strided"
    stride: Count
    visible: Literal["near", "far", "both"] = "both"

    def allows(self, query: Any, key: Any) -> Any:
        """Return |query - key| <= stride (near), (query - key) mod stride = 0 (far), or either."""
        near = abs(query - key) <= self.stride
        far = (query - key) % self.stride == 0
        return {"near": near, "far": far, "both": near | far}[self.visible]


class Fixed(Pattern):
    """Fixed pattern: keys in the query's block of `stride` positions, or at the end of any block.

    `num_summary` is the paper's c: the last `num_summary` positions of a block are visible outside
    the block, too. `visible` selects one of the two sets or both, as in `Strided`. Positions start
    at 0. The pattern is only a mask: the scores of masked keys are computed, too.

    Source: Child et al. 2019, section 4.3.
    """

    kind: Literal["fixed"] = "fixed"
    stride: Count
    num_summary: Count
    visible: Literal["near", "far", "both"] = "both"

    def check(self) -> None:
        """Raise SpecError if `num_summary` is greater than `stride`."""
        if self.num_summary > self.stride:
            raise SpecError(
                f"num_summary={self.num_summary} is more than the stride={self.stride} positions "
                "of a block: give fewer."
            )

    def allows(self, query: Any, key: Any) -> Any:
        """Return whether the key is in the query's block (near), in a summary (far), or either.

        Near: query div stride = key div stride. Far: key mod stride >= stride - num_summary.
        """
        near = query // self.stride == key // self.stride
        far = key % self.stride >= self.stride - self.num_summary
        return {"near": near, "far": far, "both": near | far}[self.visible]


class PerHead(Pattern):
    """A separate pattern for each head: head n uses `patterns[n]`.

    There must be one pattern per head of the attention. Source: Child et al. 2019, section 4.2,
    equation 9 (heads with different sets).
    """

    kind: Literal["per-head"] = "per-head"
    patterns: Annotated[tuple[SerializeAsAny[Pattern], ...], Field(min_length=1)]

    @property
    def per_head(self) -> tuple[Pattern, ...]:
        """See `Pattern.per_head`."""
        return self.patterns
