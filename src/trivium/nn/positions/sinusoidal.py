"""Sinusoidal absolute position encoding.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trivium.errors import SpecError
from trivium.nn.part import Count, PartModule, Positive
from trivium.nn.positions import AbsolutePositions


class Sinusoidal(AbsolutePositions):
    """Sinusoidal position encoding, added to embeddings (Vaswani et al. 2017, section 3.5).

    In layout "interleaved" sines and cosines alternate, as in the paper; in layout "halves" all
    sines come first (Marian). `max_length` is the maximum number of positions; None: unlimited.

    With `spacing` "inclusive", the lowest frequency is exactly 1 / base, as in Tensor2Tensor and
    fairseq (M2M-100), and the angles are computed in float32. Position 0 has the sinusoids of
    `offset`, and `counted` says which tokens are counted, as in `Learned`. Tokens that are not
    counted have no position vector.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Positive = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    spacing: Literal["paper", "inclusive"] = "paper"
    offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    counted: Literal["all", "attended", "not-padding"] = "all"
    max_length: Count | None = None

    def check(self) -> None:
        """Raise SpecError if padding is not counted but `offset` is 0."""
        if self.counted != "all" and not self.offset:
            raise SpecError(f'counted="{self.counted}" needs an offset of at least 1.')

    def build(self, width: int) -> SinusoidalPositions:
        """Return the module `SinusoidalPositions`. See `AbsolutePositions.build`."""
        return SinusoidalPositions(self, width)


class SinusoidalPositions(PartModule):
    """Sinusoids PE(p, 2i) = sin(p / base^(2i/D)) and PE(p, 2i+1) = cos(p / base^(2i/D)).

    Source: Vaswani et al. 2017, section 3.5. In layout "halves" all sines precede all cosines.
    """

    def __init__(self, positions: Sinusoidal, width: int) -> None:
        super().__init__()
        self.positions, self.width = positions, width

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the sinusoids of position ids: int64 [B, T] -> float32 [B, T, D]."""
        spec, width, device = self.positions, self.width, position_ids.device
        ids = position_ids + spec.offset
        if spec.spacing == "inclusive":  # in float32, as in fairseq
            pairs = (width + 1) // 2
            step = math.log(spec.base) / max(pairs - 1, 1)
            frequency = torch.exp(torch.arange(pairs, device=device).float() * -step)
        else:  # rounded once, as the tables of Marian and Pegasus
            precise = torch.float32 if device.type == "mps" else torch.float64
            frequency = frequencies(spec.base, width, device, dtype=precise)
        angle = ids[..., None].to(frequency.dtype) * frequency
        vectors = waves(angle, width, in_halves=spec.layout == "halves").float()
        if spec.counted != "all":
            vectors = vectors.masked_fill((position_ids < 0)[..., None], 0.0)
        return vectors


def sinusoids(position_ids: Tensor, base: float, width: int, *, in_halves: bool = False) -> Tensor:
    """Return the sinusoidal encoding of position ids p: int64 [...] -> float32 [..., D].

    It is sin(p w_0), cos(p w_0), sin(p w_1), ...; with `in_halves` all sines come first.
    """
    angle = position_ids[..., None].float() * frequencies(base, width, position_ids.device)
    return waves(angle, width, in_halves=in_halves)


def waves(angle: Tensor, width: int, *, in_halves: bool) -> Tensor:
    """Return the sines and cosines of angles: [..., ceil(D / 2)] -> [..., D], as in `sinusoids`."""
    if in_halves:
        return torch.cat((angle.sin(), angle.cos()), dim=-1)[..., :width]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :width]


def frequencies(
    base: float,
    width: int,
    device: torch.device | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the frequency base^(-2i / D) of each pair i of dimensions: [ceil(D / 2)].

    It is computed as the reciprocal of a power, so that it is rounded as in `transformers`.
    """
    return 1.0 / base ** (torch.arange(0, width, 2, dtype=dtype, device=device) / width)
