"""Models: what a spec becomes."""

from __future__ import annotations

import torch

from trivium.models.initialization import initialize
from trivium.models.transformer import Transformer
from trivium.spec import ModelSpec

__all__ = ["Transformer", "build"]


def build(spec: ModelSpec, *, seed: int = 0, device: torch.device | str = "cpu") -> Transformer:
    """The module that `spec` describes, initialised from `seed`, in float32.

    On device "meta" nothing is allocated: parameters have shapes and no numbers.
    """
    if str(device) == "meta":
        with torch.device("meta"):
            return Transformer(spec)
    with torch.device("cpu"):
        model = Transformer(spec)
    initialize(model, seed)
    return model.to(device)
