"""Transformer-XL's relative position encoding: scores from a query and its distance to a key.

Shape letters: B batch, T query positions, S key positions, R distances, D width, N heads, K
key-value heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.nn.part import Positive
from trivium.nn.positions import Positions, PositionsModule, distances
from trivium.nn.positions.sinusoidal import sinusoids
from trivium.nn.sequence_info import SequenceInfo


class TransformerXLPositions(Positions):
    """Transformer-XL's relative position encoding (Dai et al. 2019, section 3.3).

    Distances are encoded as sinusoids with the base `base`. Each layer has its own projection of
    the sinusoids.
    """

    has_scores: ClassVar[bool] = True
    kind: Literal["transformer-xl"] = "transformer-xl"
    base: Positive = 10_000.0

    def flops(self, attended: float, num_heads: int, head_dim: int) -> float:
        """Return the training FLOPs per token of the position scores, forward and backward.

        They are 6 N H per attended position (one dot product of a query and a distance).
        """
        return 6.0 * attended * num_heads * head_dim

    def activation_numel(self, length: int, num_heads: int, head_dim: int) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        These are the queries with the bias v added, and the position scores.
        """
        return num_heads * (head_dim + length)

    def build(self, attention: Any, d_model: int) -> TransformerXLPositionsModule:
        """Return the module `TransformerXLPositionsModule`. See `Positions.build`."""
        return TransformerXLPositionsModule(attention, d_model)


@dataclass(frozen=True)
class RelativeDistances:
    """The distances between queries and keys in a forward pass, shared by all layers.

    Args:
        vectors: the sinusoids of every possible distance, [R, D].
        index: the row of `vectors` for each query-key pair, int64 [1 or B, 1, T, S].
    """

    vectors: Tensor
    index: Tensor


class TransformerXLPositionsModule(PositionsModule):
    """Relative scores (q_i R_i-j + u k_j + v R_i-j) / sqrt(H), with R_i-j = W_R sinusoid(i - j).

    The three summands are terms (b), (c) and (d) of Dai et al. 2019, section 3.3; term (a) is the
    content score of attention. Every layer has its own u and v, as in the paper's large model and
    in XLNet; u and v start at 0. Sinusoids have all sines first, as in the released code.
    """

    parallel: ClassVar[Mapping[str, str]] = {
        "distance": "column",
        "content_bias": "column",
        "distance_bias": "column",
    }

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__(attention, width)
        assert isinstance(attention.positions, TransformerXLPositions)
        self.base, self.width = attention.positions.base, width
        self.scale = attention.score_scale
        heads = attention.num_heads * attention.head_dim
        self.distance = nn.Parameter(torch.empty(heads, width))  # W_R
        self.content_bias = nn.Parameter(torch.empty(heads))  # u
        self.distance_bias = nn.Parameter(torch.empty(heads))  # v

    def prepare(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> RelativeDistances:
        """Return the distances between queries and keys, with their sinusoids.

        Distances to later keys are included only if a query may attend to later keys.
        """
        distance = -distances(sequence, keys)
        farthest = distance.shape[2] - 1
        later = not sequence.causal or sequence.prefix is not None
        nearest = -farthest if later else 0
        there = torch.arange(nearest, farthest + 1, device=distance.device)
        # Keys outside these bounds are padding or no longer cached: no query attends to them.
        index = distance.clamp(nearest, farthest) - nearest
        vectors = sinusoids(there, self.base, self.width, in_halves=True)
        return RelativeDistances(vectors, index[:, None])

    def scores(self, query: Tensor, key: Tensor, prepared: RelativeDistances) -> Tensor:
        """Return the position scores, terms (b), (c) and (d) of the paper: [B, N, T, S]."""
        heads, head_dim = self.attention.num_heads, self.attention.head_dim
        query, vectors = query.to(key.dtype), prepared.vectors.to(key.dtype)
        matrix, u, v = (
            weight.to(key.dtype).unflatten(0, (heads, head_dim))
            for weight in (self.distance, self.content_bias, self.distance_bias)
        )
        query = query + v[:, None]
        if len(query) * query.shape[2] < head_dim:  # cheaper: W_R^T q once for all distances
            by_distance = query @ matrix @ vectors.T
        else:
            by_distance = query @ (matrix @ vectors.T)  # [B, N, T, R]
        index = prepared.index.expand(*by_distance.shape[:3], -1)
        content = key @ u.unflatten(0, (key.shape[1], -1)).mT  # [B, K, S, N / K]
        content = content.mT.flatten(1, 2)[:, :, None]
        return self.scale * (by_distance.gather(-1, index) + content)
