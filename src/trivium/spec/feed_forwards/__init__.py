"""Kinds of feed-forward networks: what a block does with every token, mostly by itself."""

from __future__ import annotations

from typing import ClassVar, Self

from trivium.choice import Choice, import_members
from trivium.spec.part import Part


class Positionwise(Choice, Part):
    """A function of one token's vector, [..., D] -> [..., D]; modules are in `nn/feed_forwards`."""

    adds_loss: ClassVar[bool] = False
    """Whether its module returns a loss of its own, as experts do to stay balanced."""
    reads_earlier: ClassVar[bool] = False
    """Whether it also reads vectors of earlier tokens, of which its module then has a state. It
    computes all tokens of its row, also where few are wanted."""
    computes: ClassVar[bool] = True
    """Whether there is one; else a block is its mixer alone, without a second norm."""
    has_fixed_shapes: ClassVar[bool] = True
    """Whether no shape in it depends on the tokens, so that a whole step can be compiled."""

    @property
    def divided(self) -> dict[str, int]:
        """Sizes that tensor parallelism divides, by the names of their fields."""
        return {}

    def kept_numbers(self, width: int) -> int:
        """Numbers that training keeps of a token between forward and backward pass.

        Its input, `width` numbers, and its norm are counted by the block.
        """
        raise NotImplementedError

    def with_dropout(self, dropout: float) -> Self:
        """The same with this dropout of its hidden units, where it has any."""
        return self

    def narrower(self, fraction: float) -> Positionwise:
        """The same with this fraction of its hidden units."""
        raise NotImplementedError


import_members(__name__, __path__)
