"""Linformer: attention to a fixed number of projected positions."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.errors import SpecError
from trivium.spec.mixers import Mixer
from trivium.spec.part import Count


class Linformer(Mixer):
    """Attention to `rank` mixtures of the keys and values of a row (Wang et al. 2020).

    `shared` is the paper's: "headwise" has matrices E of keys and F of values in every layer,
    "key-value" has E = F, "layerwise" one E in all layers.
    """

    decodes: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    kind: Literal["linformer"] = "linformer"
    num_heads: Count
    head_dim: Count
    rank: Count
    max_length: Count
    shared: Literal["headwise", "key-value", "layerwise"] = "layerwise"

    def check(self) -> None:
        """Raise SpecError for a rank above the longest text."""
        if self.rank > self.max_length:
            raise SpecError(
                f"rank={self.rank} is more than max_length={self.max_length}: attention to all "
                "positions is the same and costs less; give a lower rank."
            )

    def flops(self, attended: float) -> float:
        """12 N H rank for the projections of keys and values, as many for scores and sums."""
        return 24.0 * self.rank * self.num_heads * self.head_dim

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Queries, keys, values and outputs; the probabilities, with dropout three times.

        Each row also has its projected keys and values.
        """
        scores = self.num_heads * self.rank * (3 if dropout else 1)
        heads = self.num_heads * self.head_dim
        return 4 * heads + scores + 2 * self.rank * heads // length
