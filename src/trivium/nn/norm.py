"""Normalisation over the last axis: PyTorch's own, chosen by the description."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from trivium import spec


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * w (Zhang & Sennrich 2019), with a short way on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        if x.dtype != torch.float32 or x.device.type != "cpu" or torch.is_grad_enabled():
            return super().forward(x)
        # PyTorch has 8 operations for it, and of a few rows each takes as long as its call.
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return x * (self.weight / torch.hypot(size, _root(self.eps or 0.0)))


@functools.cache
def _root(eps: float) -> Tensor:
    return torch.tensor(eps**0.5)


def build_norm(norm: spec.Norm | None, width: int) -> nn.Module:
    """The module that a norm's description stands for; None leaves its input as it is."""
    match norm:
        case spec.LayerNorm(eps=eps, bias=bias):
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case spec.RMSNorm(eps=eps):
            return RMSNorm(width, eps=eps)
        case None:
            return nn.Identity()
