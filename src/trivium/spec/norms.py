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
