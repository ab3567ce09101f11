"""Relative scores: what Transformer-XL and XLNet know of positions."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.part import Positive
from trivium.spec.positions import Positions


class RelativeScores(Positions):
    """Scores of a query and the distance to a key (Dai et al. 2019, section 3.3).

    Distances have sinusoids of `base`, which each layer projects.
    """

    has_scores: ClassVar[bool] = True
    kind: Literal["relative-scores"] = "relative-scores"
    base: Positive = 10_000.0

    def flops(self, attended: float, num_heads: int, head_dim: int) -> float:
        """6 N H for every distance to a position."""
        return 6.0 * attended * num_heads * head_dim

    def kept_numbers(self, length: int, num_heads: int, head_dim: int) -> int:
        """Queries with a bias, and scores."""
        return num_heads * (head_dim + length)
