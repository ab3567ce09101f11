"""Disentangled attention: content-to-position and position-to-content scores.

Shape letters: B batch, T query positions, S key positions, D width, N heads, K key-value heads,
H head_dim, P = 2 * `span` relative positions.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Literal

import torch
from pydantic import SerializeAsAny
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.nn.norm import Norm, build_norm
from trivium.nn.part import Count
from trivium.nn.positions import Positions, PositionsModule, distances
from trivium.nn.sequence_info import SequenceInfo


class Disentangled(Positions):
    """DeBERTa's disentangled relative position embeddings (He et al. 2020, section 3.1).

    `terms` lists the score terms: content-to-position ("c2p") and position-to-content ("p2c"). With
    `max_distance`, large distances share buckets (He et al. 2021, as released). Otherwise each of
    the 2 * `span` distances has its own embedding. With `shared`, the query and key projections of
    attention also project the position embeddings (DeBERTa v2 and v3). Otherwise the position
    embeddings have their own projections. All layers of a stack share one table of position
    embeddings. `norm` is applied to the table.
    """

    has_scores: ClassVar[bool] = True
    kind: Literal["disentangled"] = "disentangled"
    span: Count
    max_distance: Count | None = None
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    shared: bool = True
    norm: SerializeAsAny[Norm] | None = None

    def check(self) -> None:
        """Raise SpecError for repeated or missing score terms, or a too small `max_distance`."""
        if not self.terms or len(set(self.terms)) < len(self.terms):
            raise SpecError("terms are 'c2p', 'p2c' or both, each once.")
        far = self.max_distance
        if far is not None and (self.span < 4 or far <= self.span // 2 + 1):
            raise SpecError(f"max_distance={far} must exceed span / 2 + 1, and span be 4 or more.")

    @property
    def num_dot_products(self) -> int:
        """One dot product of query and key, plus one per score term (c2p, p2c)."""
        return 1 + len(self.terms)

    def flops(self, attended: float, num_heads: int, head_dim: int) -> float:
        """Return the training FLOPs per token of the position scores, forward and backward.

        Each term (c2p, p2c) costs 6 P N H, with P = 2 * `span`.
        """
        return 12.0 * len(self.terms) * self.span * num_heads * head_dim

    def activation_numel(self, length: int, num_heads: int, head_dim: int) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        These are the scores of each term (c2p, p2c) for all P relative positions, the scores
        gathered from them for each key, and the sum of the terms.
        """
        return len(self.terms) * num_heads * (2 * self.span + length) + num_heads * length

    def build(self, attention: Any, d_model: int) -> DisentangledPositions:
        """Return the module `DisentangledPositions`. See `Positions.build`."""
        return DisentangledPositions(attention, d_model)


class DistanceTable(nn.Module):
    """Relative position embeddings [P, D]: one vector per distance or distance bucket."""

    def __init__(self, positions: Disentangled, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * positions.span, width))
        self.norm = build_norm(positions.norm, width)

    def forward(self) -> Tensor:
        """Return the relative position embeddings after the norm, if there is one: [P, D]."""
        return self.norm(self.weight)


class DisentangledPositions(PositionsModule):
    """Disentangled scores: (q_i . k^r_d + k_j . q^r_d) * scale, with d = delta(i, j).

    q^r and k^r are projections of the relative position embeddings, and d is the row of the
    embedding for query i and key j.
    Source: He et al. 2020, equation 4. The equation has delta(j, i) in the second term; the
    released code has delta(i, j) in both terms, and so does this module.
    """

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__(attention, width)
        assert isinstance(attention.positions, Disentangled)
        self.part, self.width, self.head_dim = attention.positions, width, attention.head_dim
        self.scale = attention.score_scale
        self.query = self.key = None
        if not self.part.shared:
            inner = attention.num_heads * attention.head_dim
            if "c2p" in self.part.terms:
                self.key = nn.Linear(width, inner, bias=attention.has_key_bias)
            if "p2c" in self.part.terms:
                self.query = nn.Linear(width, inner, bias=attention.bias)

    def new_table(self) -> DistanceTable:
        """Return the relative position embeddings that all layers of a stack share."""
        return DistanceTable(self.part, self.width)

    def prepare(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        """Return embedding indices, int64 [1 or B, 1, T, S], and position embeddings [P, D].

        The index of a query-key pair is the row of its relative position embedding.
        """
        if table is None:
            raise SpecError(
                "vectors of distances are in a table that the layers of a stack share: give "
                "`prepare` what the mixer's `new_table` made."
            )
        return embedding_indices(-distances(sequence, keys), self.part)[:, None], table()

    def project_positions(
        self, prepared: tuple[Tensor, Tensor], query: nn.Linear, key: nn.Linear
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project the relative position embeddings with the layer's key and query projections.

        Returns the embedding indices (unchanged), position keys and position queries [N, P, H].
        """
        rows, table = prepared
        return (
            rows,
            self._split_heads((self.key or key)(table)),
            self._split_heads((self.query or query)(table)),
        )

    def scores(self, query: Tensor, key: Tensor, prepared: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the scaled sum of the c2p and p2c scores: [B, N, T, S]."""
        rows, position_key, position_query = prepared
        batch, heads = query.shape[:2]
        rows = rows.expand(batch, heads, -1, -1)
        total = query.new_zeros(())
        if "c2p" in self.part.terms:
            scores = query @ position_key.to(query.dtype).transpose(-1, -2)  # [B, N, T, P]
            total = total + scores.gather(-1, rows)
        if "p2c" in self.part.terms:
            key = key.repeat_interleave(heads // key.shape[1], dim=1)
            scores = key @ position_query.to(key.dtype).transpose(-1, -2)  # [B, N, S, P]
            total = total + scores.gather(-1, rows.transpose(-1, -2)).transpose(-1, -2)
        return total * self.scale

    def _split_heads(self, x: Tensor) -> Tensor:
        """Split into heads, [P, heads * H] -> [N, P, H]; repeats key-value heads up to N (GQA)."""
        split = x.unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
        return split.repeat_interleave(self.attention.num_heads // len(split), dim=0)


@cache
def _float32_log(x: float) -> float:
    """Return the logarithm in float32, whose rounding decides where buckets end."""
    return torch.tensor(x, device="cpu").log().item()


def embedding_indices(distance: Tensor, part: Disentangled) -> Tensor:
    """Map each distance (query - key) to a relative position embedding: int64 [...], same shape.

    The result is the index of the embedding. With buckets, each distance up to span / 2 has its own
    embedding. Larger distances share buckets that widen logarithmically.
    """
    if part.max_distance is not None:
        middle = part.span // 2
        ratio = (distance.abs().clamp(min=middle).float() / middle).log()
        whole = _float32_log((part.max_distance - 1) / middle)
        far = (torch.ceil(ratio / whole * (middle - 1)) + middle).long() * distance.sign()
        distance = torch.where(distance.abs() <= middle, distance, far)
    return (distance + part.span).clamp(0, 2 * part.span - 1)
