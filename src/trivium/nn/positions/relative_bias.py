"""T5's bias: a trained number for each head and bucket of distances.

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
from trivium.nn.context import Context
from trivium.nn.mask import Bias
from trivium.nn.part import Count
from trivium.nn.positions import Positions, PositionsModule, distances


class RelativeBias(Positions):
    """A trained number for each head and bucket of distances, added to scores (T5, section 2.1).

    Near distances have a bucket each, farther ones share buckets that widen logarithmically up to
    `max_distance`. One table a stack.
    """

    has_scores: ClassVar[bool] = True
    divides: ClassVar[bool] = True
    kind: Literal["relative-bias"] = "relative-bias"
    num_buckets: Annotated[int, Field(ge=4, lt=2**31, multiple_of=2)] = 32
    max_distance: Count = 128

    def check(self) -> None:
        """Raise SpecError where the buckets do not reach the maximum distance."""
        # Of a decoder half of the buckets are one distance wide.
        if self.max_distance <= self.num_buckets // 2:
            raise SpecError(f"max_distance={self.max_distance} must exceed num_buckets / 2.")

    def build(self, attention: Any, d_model: int) -> RelativePositionBias:
        """See `Positions.build`."""
        return RelativePositionBias(attention, d_model)


class BucketTable(nn.Module):
    """The bias of every bucket and head: [buckets, N]."""

    def __init__(self, positions: RelativeBias, num_heads: int) -> None:
        super().__init__()
        self.positions = positions
        self.weight = nn.Parameter(torch.empty(positions.num_buckets, num_heads))

    def forward(self, buckets: Tensor) -> Tensor:
        """Int64 [1 or B, T, S] -> [1 or B, N, T, S]."""
        return F.embedding(buckets, self.weight).permute(0, 3, 1, 2)


class RelativePositionBias(PositionsModule):
    """A number for each head and bucket of key position - query position (Raffel et al. 2019).

    Half of the buckets are for later keys, unless causal; else these share bucket 0. Of the
    buckets of a direction the first half are single distances; the others widen logarithmically
    and the last takes all the rest.
    """

    def new_table(self) -> BucketTable:
        """See `MixerModule.new_table`."""
        assert isinstance(self.attention.positions, RelativeBias)
        return BucketTable(self.attention.positions, self.attention.num_heads)

    def prepare(self, context: Context, keys: Context, table: nn.Module | None) -> Tensor:
        """The bias of each distance up to the one beyond which all have the same, [R, N]."""
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
        buckets = relative_buckets(distance, positions, bidirectional=not context.causal)
        return table(buckets)[0, :, 0].T

    def bias(self, prepared: Tensor) -> Bias:
        """See `PositionsModule.bias`; farther keys have the bias of the farthest."""
        farthest = len(prepared) // 2

        def of(queries: Context, keys: Context) -> Tensor:
            rows = distances(queries, keys).clamp_(-farthest, farthest).add_(farthest)
            return F.embedding(rows, prepared).permute(0, 3, 1, 2)

        return of


def relative_buckets(distance: Tensor, bias: RelativeBias, *, bidirectional: bool) -> Tensor:
    """The bucket of each distance (key - query): int64 [...] -> int64 [...]."""
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
