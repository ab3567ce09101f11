"""Absolute positions as sines and cosines.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

from torch import Tensor

from trivium import spec
from trivium.nn.part_module import PartModule
from trivium.nn.sinusoids import sinusoids


class SinusoidalPositions(PartModule, of=spec.Sinusoidal):
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos of the same.

    Source: Vaswani et al. 2017, section 3.5. In halves, all sines come before all cosines.
    """

    def __init__(self, positions: spec.Sinusoidal, width: int) -> None:
        super().__init__()
        self.base, self.width = positions.base, width
        self.in_halves = positions.layout == "halves"

    def forward(self, position_ids: Tensor) -> Tensor:
        """Int64 [B, T] -> float32 [B, T, D]."""
        return sinusoids(position_ids, self.base, self.width, in_halves=self.in_halves)
