"""Sparse attention patterns, combined with the causal, padding and document masks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny

from trivium.choice import Choice
from trivium.errors import SpecError
from trivium.nn.part import Count, Part


class Pattern(Choice, Part):
    """Spec of an attention pattern: a rule for the positions that a query may attend to."""

    @property
    def reach(self) -> int | None:
        """The largest distance at which a query may attend to a key; None: unlimited."""
        return None

    @property
    def head_patterns(self) -> tuple[Pattern, ...]:
        """The patterns of the heads: one per head, or a single one that all heads share."""
        return (self,)

    def allows(self, query: Any, key: Any) -> Any:
        """Return whether a query may attend to a key, given their positions in the sequence.

        Positions are integers or tensors that broadcast. A pattern with a `reach` gets indices in
        the row instead. Padding or packing shifts them, but does not change distances.
        """
        raise NotImplementedError


class Sliding(Pattern):
    """Sliding window: a query attends to keys at a distance of at most `window` positions.

    In causal attention these are its own position and the `window` positions before.
    """

    kind: Literal["sliding"] = "sliding"
    window: Count

    @property
    def reach(self) -> int:
        """The largest distance at which a query may attend to a key: the window size."""
        return self.window

    def allows(self, query: Any, key: Any) -> Any:
        """Return whether the key is in the query's window: |query - key| <= window."""
        return abs(query - key) <= self.window


class Strided(Pattern):
    """Strided pattern: keys at distances of at most `stride`, or of multiples of `stride`.

    `visible` selects the first set of keys ("near"), the second set ("far") or their union
    ("both"). With a near head and a far head, information from every position reaches the query
    in two steps. In an encoder the same distances to later keys are allowed. The pattern is only a
    mask: the scores of masked keys are computed, too, so it saves no compute.

    Source: Child et al. 2019, section 4.3, the sets A^(1) and A^(2).
    """

    kind: Literal["strided"] = "strided"
    stride: Count
    visible: Literal["near", "far", "both"] = "both"

    def allows(self, query: Any, key: Any) -> Any:
        """Return whether a query may attend to a key in the near set, the far set or either.

        Near: |query - key| <= stride. Far: (query - key) mod stride = 0.
        """
        near = abs(query - key) <= self.stride
        far = (query - key) % self.stride == 0
        return {"near": near, "far": far, "both": near | far}[self.visible]


class Fixed(Pattern):
    """Fixed pattern: keys in the query's block of `stride` positions, or at the end of any block.

    The last `num_summary` positions of each block (c in the paper) are visible outside the block,
    too. `visible` selects the keys in the query's block ("near"), the keys at the end of any block
    ("far") or "both". Positions start at 0. The pattern is only a mask: the scores of masked keys
    are computed, too, so it saves no compute.

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
        """Return whether the key is in the query's block (near), at a block's end (far), or either.

        Near: query div stride = key div stride. Far: key mod stride >= stride - num_summary.
        """
        near = query // self.stride == key // self.stride
        far = key % self.stride >= self.stride - self.num_summary
        return {"near": near, "far": far, "both": near | far}[self.visible]


class PerHead(Pattern):
    """A separate pattern for each head: head n uses `patterns[n]`.

    The number of patterns must equal the number of heads. Source: Child et al. 2019, section 4.2,
    equation 9 (heads with different sets).
    """

    kind: Literal["per-head"] = "per-head"
    patterns: Annotated[tuple[SerializeAsAny[Pattern], ...], Field(min_length=1)]

    @property
    def head_patterns(self) -> tuple[Pattern, ...]:
        """The pattern of each head."""
        return self.patterns
