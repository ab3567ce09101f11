"""No feed-forward network."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.nn.context import Context
from trivium.nn.feed_forwards import FeedForwardModule
from trivium.spec.feed_forwards.nothing import NoFeedForward


class NothingToAdd(FeedForwardModule, of=NoFeedForward):
    """0, which leaves the residual stream as it is."""

    def forward(self, x: Tensor, context: Context | None = None) -> tuple[Tensor, Tensor | None]:
        """[..., D] -> zeros [..., D], and no loss."""
        return torch.zeros_like(x), None
