"""Normalisation over the last axis: PyTorch's own, chosen by the description."""

from __future__ import annotations

from torch import nn

from trivium import spec


def build_norm(norm: spec.Norm | None, width: int) -> nn.Module:
    """The module that a norm's description stands for; None leaves its input as it is."""
    match norm:
        case spec.LayerNorm(eps=eps, bias=bias):
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case spec.RMSNorm(eps=eps):
            return nn.RMSNorm(width, eps=eps)
        case None:
            return nn.Identity()
