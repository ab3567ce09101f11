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
        case spec.DeviationNorm(eps=eps):
            return SampleLayerNorm(width, eps=eps)
        case spec.RMSNorm(eps=eps, offset=1, bias=bias):
            return OffsetRMSNorm(width, eps, bias=bias)
        case spec.RMSNorm(eps=eps, bias=True):
            return BiasedRMSNorm(width, eps=eps)
        case spec.RMSNorm(eps=eps):
            return nn.RMSNorm(width, eps=eps)
        case None:
            return nn.Identity()


class SampleLayerNorm(nn.LayerNorm):
    """See `spec.DeviationNorm`."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        x = input
        scores = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps)
        return scores * self.weight + self.bias


class BiasedRMSNorm(nn.RMSNorm):
    """RMSNorm with a bias that is added (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps=eps)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return super().forward(x) + self.bias


class OffsetRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (1 + weight) over the last axis, of `width` numbers, + bias.

    It is computed in float32 at least, and rounded once. Source: the released code of Gemma (Gemma
    Team 2024); their paper names RMSNorm alone.
    """

    def __init__(self, width: int, eps: float, *, bias: bool = False) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        exact = torch.promote_types(x.dtype, torch.float32)
        weight = 1.0 + self.weight.to(exact)
        y = F.rms_norm(x.to(exact), weight.shape, weight, self.eps)
        return (y if self.bias is None else y + self.bias).to(x.dtype)
