"""Activations, by the names that a spec gives them."""

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
    """x * sigmoid(beta x) (Ramachandran et al. 2017); "silu" is the one with beta 1."""

    kind: Literal["swish"] = "swish"
    beta: Positive


Activation = str
"""A name in `ACTIVATIONS`, which is checked when a model is built."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "identity": nn.Identity(),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
"""The activations that a model can have, named as in `transformers`, where it has the function.

`interop/family.py` lists the names that are written and read there; "gelu_tanh" has several."""


def swish(x: Tensor, beta: float) -> Tensor:
    """x * sigmoid(beta x) (Ramachandran et al. 2017)."""
    return x * torch.sigmoid(beta * x)


def soft_capped(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), between -cap and cap (Gemma Team 2024, section 2)."""
    return cap * torch.tanh(x / cap)


def build_activation(activation: Activation | Swish) -> Callable[[Tensor], Tensor]:
    """The function of a spec's activation. Raises SpecError for an unknown name."""
    if isinstance(activation, Swish):
        return partial(swish, beta=activation.beta)
    if activation not in ACTIVATIONS:
        raise SpecError(
            f'activation = "{activation}" is not one of {", ".join(ACTIVATIONS)}, or '
            '{kind = "swish", beta = 1.5}.'
            f"{did_you_mean(activation, ACTIVATIONS)}"
        )
    return ACTIVATIONS[activation]
