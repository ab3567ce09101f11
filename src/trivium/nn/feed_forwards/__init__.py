"""The module of every kind of feed-forward network, described in `spec/feed_forwards`.

Shape letters: D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from trivium.choice import import_members
from trivium.nn.context import Context
from trivium.nn.part_module import PartModule
from trivium.nn.state import State


class FeedForwardModule(PartModule):
    """A function of one token's vector, or of those before it too, built of a part and a width."""

    def __init__(self, part: Any, width: int) -> None:
        super().__init__()
        self.part = part

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """As `MixerModule.new_state`, where its part `reads_earlier` tokens."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, context: Context | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[..., D] -> [..., D], and what is added up for `loss` over the layers; None: nothing.

        `context` is that of the pass; of a block with `select`, x are the vectors chosen there.
        Where its part `reads_earlier` tokens x is [B, T, D], and `state` is extended in place.
        """
        raise NotImplementedError

    def loss(self, added: Tensor) -> Tensor:
        """What a stack adds to the loss, a mean per token, of what its layers return, added up."""
        return added

    @property
    def idle(self) -> Iterable[nn.Module]:
        """As many of its modules as do not compute for a token (experts that it does not take)."""
        return ()


import_members(__name__, __path__)
