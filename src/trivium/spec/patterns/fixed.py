"""The fixed pattern of Sparse Transformers."""

from __future__ import annotations

from typing import Any, Literal

from trivium.errors import SpecError
from trivium.spec.part import Count
from trivium.spec.patterns import Pattern


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
