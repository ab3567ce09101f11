"""The position-wise feed-forward network.

Shape letters: D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.nn.activations import build_activation
from trivium.nn.context import Context
from trivium.nn.feed_forwards import FeedForwardModule
from trivium.nn.state import State


class FeedForwardNetwork(FeedForwardModule, of=spec.FeedForward):
    """act(x W_up) W_down (Vaswani et al. 2017, equation 2).

    Gated it is (act(x W_gate) * (x W_up)) W_down; with silu that is SwiGLU (Shazeer 2020).
    """

    parallel: ClassVar[Mapping[str, str]] = {"up": "column", "gate": "column", "down": "row"}

    def __init__(self, part: spec.FeedForward, width: int) -> None:
        super().__init__(part, width)
        self.activation = build_activation(part.activation)
        self.up = nn.Linear(width, part.d_ff, bias=part.bias)
        self.down = nn.Linear(part.d_ff, width, bias=part.bias)
        self.gate = nn.Linear(width, part.d_ff, bias=part.bias) if part.gated else None

    def forward(
        self, x: Tensor, context: Context | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[..., D] -> [..., D], and no loss."""
        if self.gate is None:
            hidden = self.activation(self.up(x))
        else:
            hidden = self.activation(self.gate(x)) * self.up(x)
        return self.down(F.dropout(hidden, self.part.dropout, self.training)), None
