"""Norms."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trivium.spec.part import Part, Positive


class LayerNorm(Part):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016)."""

    kind: Literal["layer"] = "layer"
    eps: Positive = 1e-5
    bias: bool = True


class RMSNorm(Part):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

    kind: Literal["rms"] = "rms"
    eps: Positive = 1e-6


Norm = Annotated[LayerNorm | RMSNorm, Field(discriminator="kind")]
