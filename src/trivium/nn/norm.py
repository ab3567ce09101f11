"""Normalisation over the last axis."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.nn.part import Part, Positive


class LayerNorm(Part):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016)."""

    kind: Literal["layer"] = "layer"
    eps: Positive = 1e-5
    bias: bool = True


class DeviationNorm(Part):
    """(x - mean) / (deviation + eps) * weight + bias, the deviation that of a sample (n - 1).

    LayerNorm as textbooks write it, after the Annotated Transformer (Rush 2018).
    """

    kind: Literal["deviation"] = "deviation"
    eps: Positive = 1e-6


class RMSNorm(Part):
    """x / sqrt(mean(x^2) + eps) * (offset + weight) + bias (Zhang and Sennrich 2019).

    With offset 1 the weight is a difference from 1 and starts at 0 (Gemma).
    """

    kind: Literal["rms"] = "rms"
    eps: Positive = 1e-6
    offset: Literal[0, 1] = 0
    bias: bool = False


Norm = Annotated[LayerNorm | DeviationNorm | RMSNorm, Field(discriminator="kind")]


def build_norm(norm: Norm | None, width: int) -> nn.Module:
    """The module of a spec's norm; None is the identity."""
    match norm:
        case LayerNorm(eps=eps, bias=bias):
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case DeviationNorm(eps=eps):
            return SampleLayerNorm(width, eps=eps)
        case RMSNorm(eps=eps, offset=1, bias=bias):
            return OffsetRMSNorm(width, eps, bias=bias)
        case RMSNorm(eps=eps, bias=True):
            return BiasedRMSNorm(width, eps=eps)
        case RMSNorm(eps=eps):
            return nn.RMSNorm(width, eps=eps)
        case None:
            return nn.Identity()


class SampleLayerNorm(nn.LayerNorm):
    """See `DeviationNorm`."""

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
