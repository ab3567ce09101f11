"""The strided pattern of Sparse Transformers."""

from __future__ import annotations

from typing import Any, Literal

from trivium.spec.part import Count
from trivium.spec.patterns import Pattern


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
