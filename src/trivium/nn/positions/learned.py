"""Trained absolute positions.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.nn.part_module import PartModule


class LearnedPositions(PartModule, of=spec.Learned):
    """One trained vector for each position (Devlin et al. 2018)."""

    def __init__(self, positions: spec.Learned, width: int) -> None:
        super().__init__()
        self.offset = positions.offset
        self.weight = nn.Parameter(torch.empty(positions.max_length + positions.offset, width))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Int64 [B, T] -> [B, T, D]."""
        if self.offset:
            position_ids = position_ids + self.offset
        return nn.functional.embedding(position_ids, self.weight)
