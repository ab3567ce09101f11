"""The position-wise feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.nn.inference_linear import InferenceLinear, joined

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


def swish(x: Tensor, beta: float) -> Tensor:
    """x * sigmoid(beta x) (Ramachandran et al. 2017)."""
    return x * torch.sigmoid(beta * x)


def build_activation(activation: spec.Activation | spec.Swish) -> Callable[[Tensor], Tensor]:
    """The function that an activation's description stands for."""
    if isinstance(activation, spec.Swish):
        return partial(swish, beta=activation.beta)
    return ACTIVATIONS[activation]


class FeedForward(nn.Module):
    """act(x W_up) W_down (Vaswani et al. 2017, equation 2)."""

    def __init__(self, feed_forward: spec.FeedForward, width: int) -> None:
        super().__init__()
        self.activation = build_activation(feed_forward.activation)
        self.up = nn.Linear(width, feed_forward.d_ff, bias=feed_forward.bias)
        self.down = nn.Linear(feed_forward.d_ff, width, bias=feed_forward.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(FeedForward):
    """(act(x W_gate) * (x W_up)) W_down; with silu it is SwiGLU (Shazeer 2020)."""

    def __init__(self, feed_forward: spec.FeedForward, width: int) -> None:
        super().__init__(feed_forward, width)
        self.gate = nn.Linear(width, feed_forward.d_ff, bias=feed_forward.bias)
        self.joint: InferenceLinear | None = None

    def join(self, make: Callable[[Tensor, nn.Parameter | None], InferenceLinear]) -> None:
        """For inference: one product for the gate and what it lets through."""
        self.joint = make(*joined((self.gate, self.up)))
        del self.gate, self.up

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        gate, up = (self.gate(x), self.up(x)) if self.joint is None else self.joint(x).chunk(2, -1)
        return self.down(self.activation(gate) * up)


def build_feed_forward(feed_forward: spec.FeedForward, width: int) -> FeedForward:
    """The module that a feed-forward's description stands for."""
    return (GatedFeedForward if feed_forward.gated else FeedForward)(feed_forward, width)
