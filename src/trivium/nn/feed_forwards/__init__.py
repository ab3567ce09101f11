"""Kinds of feed-forward networks: what a block does with every token, mostly by itself.

Shape letters: D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from trivium.choice import Choice, import_members
from trivium.nn.part import Part, PartModule
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State


class FeedForward(Choice, Part):
    """A function of one token's vector, [..., D] -> [..., D]."""

    adds_loss: ClassVar[bool] = False
    """Whether its module returns a loss of its own, as experts do to stay balanced."""
    reads_earlier: ClassVar[bool] = False
    """Whether it also reads vectors of earlier tokens, of which its module then has a state. It
    computes all tokens of its row, also where few are wanted."""
    has_fixed_shapes: ClassVar[bool] = True
    """Whether no shape in it depends on the tokens, so that a whole step can be compiled."""

    @property
    def tp_sizes(self) -> dict[str, int]:
        """Sizes that tensor parallelism divides, by the names of their fields."""
        return {}

    def activation_numel(self, width: int) -> int:
        """Numbers that training keeps of a token between forward and backward pass.

        Its input, `width` numbers, and its norm are counted by the block.
        """
        raise NotImplementedError

    def with_dropout(self, dropout: float) -> Self:
        """The same with this dropout of its hidden units, where it has any."""
        return self

    def narrower(self, fraction: float) -> FeedForward:
        """The same with this fraction of its hidden units."""
        raise NotImplementedError

    def build(self, d_model: int) -> FeedForwardModule:
        """Return the module, which maps [..., d_model] to [..., d_model]."""
        raise NotImplementedError


class FeedForwardModule(PartModule):
    """A function of one token's vector, or of those before it too, built of a part and a width."""

    def __init__(self, part: Any, width: int) -> None:
        super().__init__()
        self.part = part

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """As `MixerModule.new_state`, where its part `reads_earlier` tokens."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, sequence: SequenceInfo | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[..., D] -> [..., D], and what is added up for `loss` over the layers; None: nothing.

        `sequence` is that of the pass; of a block with `gather_positions`, x are the vectors chosen
        there. Where its part `reads_earlier` tokens x is [B, T, D], and `state` is extended in
        place.
        """
        raise NotImplementedError

    def loss(self, added: Tensor) -> Tensor:
        """What a stack adds to the loss, a mean per token, of what its layers return, added up."""
        return added

    @property
    def inactive_experts(self) -> Iterable[nn.Module]:
        """As many of its modules as do not compute for a token (experts that it does not take)."""
        return ()


import_members(__name__, __path__)
