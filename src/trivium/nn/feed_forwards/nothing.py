"""No feed-forward network.

Shape letters: D width.
"""

from __future__ import annotations

from torch import Tensor

from trivium.nn.context import Context
from trivium.nn.feed_forwards import FeedForwardModule
from trivium.nn.state import State
from trivium.spec.feed_forwards.nothing import Nothing


class AddsNothing(FeedForwardModule, of=Nothing):
    """0, which leaves the residual stream as it is."""

    def forward(
        self, x: Tensor, context: Context | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[..., D] -> 0 of every shape, and no loss."""
        return x.new_zeros(()), None
