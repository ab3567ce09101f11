"""A mixer, then a feed-forward network."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.blocks import BlockKind


class SequentialLayers(BlockKind):
    """x + mixer(x), then x + feed_forward(x) (Vaswani et al. 2017, section 3.1)."""

    divides: ClassVar[bool] = True
    crosses: ClassVar[bool] = True
    kind: Literal["sequential"] = "sequential"
