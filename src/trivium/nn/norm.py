"""Normalisation over the last axis."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec


def build_norm(norm: spec.Norm | None, width: int) -> nn.Module:
    """The module of a spec's norm; None is the identity."""
    match norm:
        case spec.LayerNorm(eps=eps, bias=bias):
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case spec.RMSNorm(eps=eps, offset=1):
            return OffsetRMSNorm(width, eps)
        case spec.RMSNorm(eps=eps):
            return nn.RMSNorm(width, eps=eps)
        case None:
            return nn.Identity()


class OffsetRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (1 + weight) over the last axis, of `width` numbers.

    Source: the released code of Gemma (Gemma Team 2024); their paper names RMSNorm alone.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return F.rms_norm(x, self.weight.shape, 1.0 + self.weight, self.eps)
