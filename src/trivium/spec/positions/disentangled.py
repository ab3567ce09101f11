"""DeBERTa's distances, which meet the content of queries and of keys."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.errors import SpecError
from trivium.spec.norms import Norm
from trivium.spec.part import Count
from trivium.spec.positions import Positions


class Disentangled(Positions):
    """Vectors of distances that queries and keys are multiplied with (He et al. 2020, section 3.1).

    `terms` says which of content-to-position ("c2p") and position-to-content ("p2c") there are.
    With `max_distance` far distances share buckets (He et al. 2021, as released); without it each
    of the 2 `span` distances has its vector. `shared`: the matrices of content make keys and
    queries of distances, too (DeBERTa v2 and v3); else they have their own. `norm` is on the table,
    of which a stack has one.
    """

    has_scores: ClassVar[bool] = True
    kind: Literal["disentangled"] = "disentangled"
    span: Count
    max_distance: Count | None = None
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    shared: bool = True
    norm: Norm | None = None

    def check(self) -> None:
        """Raise SpecError for repeated or missing terms, and for a maximum distance too near."""
        if not self.terms or len(set(self.terms)) < len(self.terms):
            raise SpecError("terms are 'c2p', 'p2c' or both, each once.")
        far = self.max_distance
        if far is not None and (self.span < 4 or far <= self.span // 2 + 1):
            raise SpecError(f"max_distance={far} must exceed span / 2 + 1, and span be 4 or more.")

    @property
    def products(self) -> int:
        """See `Positions.products`."""
        return 1 + len(self.terms)

    def flops(self, attended: float, num_heads: int, head_dim: int) -> float:
        """12 P N H for the P = 2 `span` distances of each term, forward and backward."""
        return 12.0 * len(self.terms) * self.span * num_heads * head_dim

    def kept_numbers(self, length: int, num_heads: int, head_dim: int) -> int:
        """The scores of every term before and after distances are picked, and their sum."""
        return len(self.terms) * num_heads * (2 * self.span + length) + num_heads * length
