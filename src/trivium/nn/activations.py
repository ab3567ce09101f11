"""Activation functions, and the names used for them in specs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError, did_you_mean
from trivium.nn.part import Part, Positive


class Swish(Part):
    """Spec of Swish, x * sigmoid(beta x) (Ramachandran et al. 2017); "silu" has beta = 1."""

    kind: Literal["swish"] = "swish"
    beta: Positive


Activation = str
"""The name of an activation function in `ACTIVATIONS`; `build_activation` validates it."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "identity": nn.Identity(),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "tanh": torch.tanh,
}
"""The activation functions by name. The names are those of `transformers` where possible.

"gelu_tanh" has several names in `transformers`; `interop/family.py` maps names both ways."""


def swish(x: Tensor, beta: float) -> Tensor:
    """Apply the Swish activation function, x * sigmoid(beta x) (Ramachandran et al. 2017)."""
    return x * torch.sigmoid(beta * x)


def apply_soft_cap(x: Tensor, cap: float) -> Tensor:
    """Apply logit soft-capping, cap * tanh(x / cap) (Gemma Team 2024, section 2)."""
    return cap * torch.tanh(x / cap)


def build_activation(activation: Activation | Swish) -> Callable[[Tensor], Tensor]:
    """Return the function for an activation in a spec. Raises SpecError for an unknown name."""
    if isinstance(activation, Swish):
        return partial(swish, beta=activation.beta)
    if activation not in ACTIVATIONS:
        raise SpecError(
            f'activation = "{activation}" is not one of {", ".join(ACTIVATIONS)}, or '
            '{kind = "swish", beta = 1.5}.'
            f"{did_you_mean(activation, ACTIVATIONS)}"
        )
    return ACTIVATIONS[activation]
