"""Untrained models whose answers differ clearly from token to token."""

from __future__ import annotations

import torch
from hugging_face import normal

from trivium.models import build
from trivium.spec import TransformerSpec

TEXT = ["The weather was cloudy yesterday, but today it's rainy.", "今天天气很好。我们去公园。"]


def shaken(spec: TransformerSpec) -> torch.nn.Module:
    """Weights large enough for clear differences between tokens."""
    module = build(spec, seed=0)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.15 * normal(weight.shape, generator))
    return module
