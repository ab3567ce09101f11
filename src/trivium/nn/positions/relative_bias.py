"""T5's relative position bias: one learned scalar per head and distance bucket.

Shape letters: B batch, T query positions, S key positions, N heads, R distances.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.mask import Bias
from trivium.nn.part import Count
from trivium.nn.positions import Positions, PositionsModule, distances
from trivium.nn.sequence_info import SequenceInfo


class RelativeBias(Positions):
    """T5's position bias: one learned scalar per head and distance bucket (Raffel et al. 2019).

    Small distances have one bucket each; larger distances share buckets that widen logarithmically
    up to `max_distance`. The layers of a stack whose `table` is equal share the biases: in T5 all
    layers, in UMT5 none (Chung et al. 2023), so that layer i has table i.
    """

    has_scores: ClassVar[bool] = True
    supports_tp: ClassVar[bool] = True
    kind: Literal["relative-bias"] = "relative-bias"
    num_buckets: Annotated[int, Field(ge=4, lt=2**31, multiple_of=2)] = 32
    max_distance: Count = 128
    table: Annotated[int, Field(ge=0, lt=2**31)] = 0

    def check(self) -> None:
        """Raise SpecError if `max_distance` is not more than `num_buckets` / 2."""
        # In a decoder half of the buckets are one distance wide.
        if self.max_distance <= self.num_buckets // 2:
            raise SpecError(f"max_distance={self.max_distance} must exceed num_buckets / 2.")

    def build(self, attention: Any, d_model: int) -> RelativePositionBias:
        """Return the module `RelativePositionBias`. See `Positions.build`."""
        return RelativePositionBias(attention, d_model)


class BucketTable(nn.Module):
    """T5's learned position biases, one per distance bucket and head: [buckets, N]."""

    def __init__(self, positions: RelativeBias, num_heads: int) -> None:
        super().__init__()
        self.positions = positions
        self.weight = nn.Parameter(torch.empty(positions.num_buckets, num_heads))

    def forward(self, buckets: Tensor) -> Tensor:
        """Look up the biases of distance buckets: int64 [1 or B, T, S] -> [1 or B, N, T, S]."""
        return F.embedding(buckets, self.weight).permute(0, 3, 1, 2)


class RelativePositionBias(PositionsModule):
    """T5's position bias, added to the attention scores of each head (Raffel et al. 2019).

    The bias depends on the bucket of the distance, key position minus query position. In
    bidirectional attention half of the buckets are for later keys. In causal attention all later
    keys share bucket 0. In each direction the first half of the buckets hold one distance each. The
    other buckets widen logarithmically, and the last bucket holds all larger distances.
    """

    def new_table(self) -> BucketTable:
        """Return the position biases that all layers of a stack share."""
        assert isinstance(self.attention.positions, RelativeBias)
        return BucketTable(self.attention.positions, self.attention.num_heads)

    def prepare(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> Tensor:
        """Return the position bias of each distance and head, [R, N].

        Distances outside this range have the same bias as the first or last distance.
        """
        positions = self.attention.positions
        assert isinstance(positions, RelativeBias)
        if table is None:
            raise SpecError(
                "relative biases are in a table that the layers of a stack share: give `prepare` "
                "what the mixer's `new_table` made."
            )
        farthest = max(positions.max_distance, positions.num_buckets)
        device = keys.columns.device
        distance = torch.arange(-farthest, farthest + 1, device=device)[None, None]
        buckets = relative_buckets(distance, positions, bidirectional=not sequence.causal)
        return table(buckets)[0, :, 0].T

    def bias(self, prepared: Tensor) -> Bias:
        """Return the function that computes T5's position bias of each query-key pair.

        `prepared` [R, N] is the result of `prepare`; distances outside its range use its ends.
        """
        farthest = len(prepared) // 2

        def bucket_bias(queries: SequenceInfo, keys: SequenceInfo) -> Tensor:
            """Look up the position bias of every query-key pair: [1 or B, N, T, S]."""
            rows = distances(queries, keys).clamp_(-farthest, farthest).add_(farthest)
            return F.embedding(rows, prepared).permute(0, 3, 1, 2)

        return bucket_bias


def relative_buckets(distance: Tensor, bias: RelativeBias, *, bidirectional: bool) -> Tensor:
    """Return T5's bucket index of each distance (key - query): int64 [...], same shape."""
    buckets, first = bias.num_buckets, torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    single = buckets // 2
    ratio = (distance.clamp(min=1).float() / single).log() / math.log(bias.max_distance / single)
    shared = single + (ratio * (buckets - single)).long()
    return first + torch.where(distance < single, distance, shared.clamp(max=buckets - 1))
