"""Kinds of blocks: how a mixer and a feed-forward network meet in the residual stream."""

from __future__ import annotations

from typing import ClassVar

from trivium.choice import Choice, import_members
from trivium.spec.part import Part


class BlockKind(Choice, Part):
    """The shape of a block; its module is in `nn/blocks`."""

    divides: ClassVar[bool] = False
    """Whether tensor parallelism can divide it."""
    crosses: ClassVar[bool] = False
    """Whether it can attend to an encoder's output, too."""
    additions: ClassVar[int] = 2
    """How many times a block without cross-attention adds to the residual stream."""

    @property
    def reads(self) -> int:
        """How many normed copies of the stream such a block makes."""
        return 2


import_members(__name__, __path__)
