"""Normalisation over the last axis: PyTorch's own, chosen by the description."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec

# Numbers up to which each operation takes as long as its call.
_FEW = 16_384


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * w (Zhang & Sennrich 2019), with a short way for a few rows."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        if torch.is_grad_enabled() or x.device.type != "cpu" or x.numel() > _FEW:
            return super().forward(x)
        if x.dtype != torch.bfloat16:
            return super().forward(x)
        # PyTorch has 8 operations for it. x beside -x has mean 0 and the same mean square; what
        # the sums differ by in float32 is nothing beside the rounding to bfloat16.
        width = x.shape[-1]
        both = F.layer_norm(torch.cat((x, -x), -1), (2 * width,), eps=self.eps or 0.0)
        return both[..., :width] * self.weight


def build_norm(norm: spec.Norm | None, width: int) -> nn.Module:
    """The module that a norm's description stands for; None leaves its input as it is."""
    match norm:
        case spec.LayerNorm(eps=eps, bias=bias):
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case spec.RMSNorm(eps=eps):
            return RMSNorm(width, eps=eps)
        case None:
            return nn.Identity()
