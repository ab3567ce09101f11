"""Sinusoidal absolute position encoding.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trivium.nn.part import Count, PartModule, Positive
from trivium.nn.positions import AbsolutePositions


class Sinusoidal(AbsolutePositions):
    """Sinusoidal position encoding, added to embeddings (Vaswani et al. 2017, section 3.5).

    In layout "interleaved" sines and cosines alternate, as in the paper; in layout "halves" all
    sines come first (Marian). `max_length` is the maximum number of positions; None: unlimited.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Positive = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    max_length: Count | None = None

    def build(self, width: int) -> SinusoidalPositions:
        """Return the module `SinusoidalPositions`. See `AbsolutePositions.build`."""
        return SinusoidalPositions(self, width)


class SinusoidalPositions(PartModule):
    """Sinusoids PE(p, 2i) = sin(p / base^(2i/D)) and PE(p, 2i+1) = cos(p / base^(2i/D)).

    Source: Vaswani et al. 2017, section 3.5. In layout "halves" all sines precede all cosines.
    """

    def __init__(self, positions: Sinusoidal, width: int) -> None:
        super().__init__()
        self.base, self.width = positions.base, width
        self.in_halves = positions.layout == "halves"

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the sinusoids of position ids: int64 [B, T] -> float32 [B, T, D]."""
        return sinusoids(position_ids, self.base, self.width, in_halves=self.in_halves)


def sinusoids(position_ids: Tensor, base: float, width: int, *, in_halves: bool = False) -> Tensor:
    """Return the sinusoidal encoding of position ids p: int64 [...] -> float32 [..., D].

    It is sin(p w_0), cos(p w_0), sin(p w_1), ...; with `in_halves` all sines come first.
    """
    angle = position_ids[..., None].float() * frequencies(base, width, position_ids.device)
    if in_halves:
        return torch.cat((angle.sin(), angle.cos()), dim=-1)[..., :width]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :width]


def frequencies(base: float, width: int, device: torch.device | None = None) -> Tensor:
    """Return the frequency base^(-2i / D) of each pair i of dimensions: float32 [ceil(D / 2)]."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
