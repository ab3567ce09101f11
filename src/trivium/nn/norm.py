"""Normalization over the last axis."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.choice import Choice
from trivium.errors import SpecError
from trivium.nn.part import Part, Positive


class Norm(Choice, Part):
    """Spec of a normalization over the last axis, such as LayerNorm."""

    def activation_bytes(self, width: int, *, on_cpu: bool) -> int:
        """Return the bytes of activations per token kept for the backward pass.

        The default is three float32 vectors, for norms without a fused kernel.
        """
        return 12 * width

    def build(self, width: int) -> nn.Module:
        """Return the module, which maps [..., width] to [..., width].

        The weights of PyTorch's norms are initialized to 1 and their biases to 0. For any other
        initialization, the module must be a `PartModule` with its own `reset_parameters`.
        """
        raise NotImplementedError


class LayerNorm(Norm):
    """LayerNorm: (x - mean) / sqrt(variance + eps) * (offset + weight) + bias (Ba et al. 2016).

    With `offset=1` the weight is added to 1 and initialized to 0 (LayerNorm1P of Nemotron, Parmar
    et al. 2024). With `weight=False` there is no weight (OLMo 1, which has no bias either).
    """

    kind: Literal["layer"] = "layer"
    eps: Positive = 1e-5
    offset: Literal[0, 1] = 0
    weight: Literal[False] | None = None
    bias: bool = True

    def check(self) -> None:
        """Raise SpecError if `offset` is 1 but there is no weight (`weight=False`)."""
        _check_offset(self)

    def activation_bytes(self, width: int, *, on_cpu: bool) -> int:
        """Return the bytes per token kept for the backward pass: the input in float32."""
        return 4 * width

    def build(self, width: int) -> nn.Module:
        """Return an `nn.LayerNorm`, or a variant of it with an offset or without weight or bias."""
        if self.offset:
            return OffsetLayerNorm(width, self.eps, bias=self.bias)
        return _drop_weight(self, nn.LayerNorm(width, eps=self.eps, bias=self.bias))


class UnbiasedLayerNorm(Norm):
    """LayerNorm with unbiased standard deviation (n - 1): (x - mean) / (std + eps) * weight + bias.

    This is the variant of the Annotated Transformer (Rush 2018) and of textbooks based on it.
    """

    kind: Literal["unbiased-layer-norm"] = "unbiased-layer-norm"
    eps: Positive = 1e-6

    def build(self, width: int) -> nn.Module:
        """Return the module `UnbiasedLayerNormModule`. See `Norm.build`."""
        return UnbiasedLayerNormModule(width, eps=self.eps)


class RMSNorm(Norm):
    """RMSNorm: x / sqrt(mean(x^2) + eps) * (offset + weight) + bias (Zhang and Sennrich 2019).

    With `offset=1` the weight is added to 1 and initialized to 0 (Gemma). With `weight=False`
    there is no weight.
    """

    kind: Literal["rms"] = "rms"
    eps: Positive = 1e-6
    offset: Literal[0, 1] = 0
    weight: Literal[False] | None = None
    bias: bool = False

    def check(self) -> None:
        """Raise SpecError if `offset` is 1 but there is no weight (`weight=False`)."""
        _check_offset(self)

    def activation_bytes(self, width: int, *, on_cpu: bool) -> int:
        """Return the bytes of activations per token kept for the backward pass.

        These are the input in float32 and, on a CPU, the normalized input.
        """
        return (8 if on_cpu else 4) * width

    def build(self, width: int) -> nn.Module:
        """Return an `nn.RMSNorm`, or a variant of it with a bias or an offset."""
        if self.offset:
            return OffsetRMSNorm(width, self.eps, bias=self.bias)
        kind = BiasedRMSNorm if self.bias else nn.RMSNorm
        return _drop_weight(self, kind(width, eps=self.eps))


def build_norm(norm: Norm | None, width: int) -> nn.Module:
    """Return the module of a norm, or `nn.Identity` if `norm` is None."""
    return nn.Identity() if norm is None else norm.build(width)


def _check_offset(norm: LayerNorm | RMSNorm) -> None:
    """Raise SpecError if the offset of a norm is 1 but the norm has no weight."""
    if norm.weight is False and norm.offset:
        raise SpecError("offset=1 is added to the weight, and weight=False: give offset=0.")


def _drop_weight(norm: LayerNorm | RMSNorm, module: nn.Module) -> nn.Module:
    """Remove the weight of a norm's module if the spec has `weight=False`. Returns the module."""
    if norm.weight is False:
        module.register_parameter("weight", None)
    return module


class UnbiasedLayerNormModule(nn.LayerNorm):
    """LayerNorm that divides by the unbiased standard deviation (n - 1) plus eps."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over the last axis: [..., D] -> [..., D]."""
        x = input
        scores = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps)
        return scores * self.weight + self.bias


class BiasedRMSNorm(nn.RMSNorm):
    """RMSNorm with a bias (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps=eps)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last axis and add the bias: [..., D] -> [..., D]."""
        return super().forward(x) + self.bias


class OffsetRMSNorm(nn.Module):
    """Gemma's RMSNorm: x / sqrt(mean(x^2) + eps) * (1 + weight) + bias, over the last axis.

    The result is computed in at least float32 and rounded once. Source: the released code of Gemma
    (Gemma Team 2024); the paper mentions only RMSNorm.
    """

    def __init__(self, width: int, eps: float, *, bias: bool = False) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last axis, in at least float32: [..., D] -> [..., D]."""
        exact = torch.promote_types(x.dtype, torch.float32)
        weight = 1.0 + self.weight.to(exact)
        y = F.rms_norm(x.to(exact), weight.shape, weight, self.eps)
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class OffsetLayerNorm(nn.Module):
    """LayerNorm1P: (x - mean) / sqrt(variance + eps) * (1 + weight) + bias, over the last axis.

    Source: Parmar et al. 2024 (Nemotron-4), section 2.
    """

    def __init__(self, width: int, eps: float, *, bias: bool = True) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last axis: [..., D] -> [..., D]."""
        return F.layer_norm(x, self.weight.shape, 1.0 + self.weight, self.bias, self.eps)
