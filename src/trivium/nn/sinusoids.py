"""Sines and cosines of positions."""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoids(position_ids: Tensor, base: float, width: int, *, in_halves: bool = False) -> Tensor:
    """sin(p w_0), cos(p w_0), sin(p w_1), ...: int64 [...] -> float32 [..., D]."""
    angle = position_ids[..., None].float() * frequencies(base, width).to(position_ids.device)
    if in_halves:
        return torch.cat((angle.sin(), angle.cos()), dim=-1)[..., :width]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :width]


def frequencies(base: float, width: int) -> Tensor:
    """base^(-2i / D) for every pair i of dimensions: float32 [ceil(D / 2)]."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
