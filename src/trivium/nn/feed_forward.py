"""The position-wise feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError, did_you_mean

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
"""The activations that a model can have, named as in `transformers`, where it has the function.

`interop/family.py` lists the names that are written and read there; "gelu_tanh" has several."""


def swish(x: Tensor, beta: float) -> Tensor:
    """x * sigmoid(beta x) (Ramachandran et al. 2017)."""
    return x * torch.sigmoid(beta * x)


def build_activation(activation: spec.Activation | spec.Swish) -> Callable[[Tensor], Tensor]:
    """The function of a spec's activation. Raises SpecError for an unknown name."""
    if isinstance(activation, spec.Swish):
        return partial(swish, beta=activation.beta)
    if activation not in ACTIVATIONS:
        raise SpecError(
            f'activation = "{activation}" is not one of {", ".join(ACTIVATIONS)}, or '
            '{kind = "swish", beta = 1.5}.'
            f"{did_you_mean(activation, ACTIVATIONS)}"
        )
    return ACTIVATIONS[activation]


class FeedForwardNetwork(nn.Module):
    """act(x W_up) W_down (Vaswani et al. 2017, equation 2)."""

    def __init__(self, feed_forward: spec.FeedForward, width: int) -> None:
        super().__init__()
        self.activation = build_activation(feed_forward.activation)
        self.up = nn.Linear(width, feed_forward.d_ff, bias=feed_forward.bias)
        self.down = nn.Linear(feed_forward.d_ff, width, bias=feed_forward.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.down(self.activation(self.up(x)))


class GatedFeedForwardNetwork(FeedForwardNetwork):
    """(act(x W_gate) * (x W_up)) W_down; with silu it is SwiGLU (Shazeer 2020)."""

    def __init__(self, feed_forward: spec.FeedForward, width: int) -> None:
        super().__init__(feed_forward, width)
        self.gate = nn.Linear(width, feed_forward.d_ff, bias=feed_forward.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


def build_feed_forward(feed_forward: spec.FeedForward, width: int) -> FeedForwardNetwork:
    """The module of a spec's feed-forward."""
    return (GatedFeedForwardNetwork if feed_forward.gated else FeedForwardNetwork)(
        feed_forward, width
    )
