"""Normalisation over the last axis by PyTorch's own modules."""

from __future__ import annotations

from torch import nn

from trivium import spec


def build_norm(norm: spec.Norm | None, width: int) -> nn.Module:
    """The module of a spec's norm; None is the identity."""
    match norm:
        case spec.LayerNorm(eps=eps, bias=bias):
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case spec.RMSNorm(eps=eps):
            return nn.RMSNorm(width, eps=eps)
        case None:
            return nn.Identity()
