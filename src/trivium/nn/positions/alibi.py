"""ALiBi: attention scores decrease linearly with distance, with one slope per head.

Shape letters: B batch, T query positions, S key positions, N heads.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from trivium.nn.mask import Bias
from trivium.nn.positions import Positions, PositionsModule, distances
from trivium.nn.sequence_info import SequenceInfo


class ALiBi(Positions):
    """ALiBi: a score penalty proportional to distance, one slope per head (Press et al. 2022)."""

    has_scores: ClassVar[bool] = True
    supports_tp: ClassVar[bool] = True
    kind: Literal["alibi"] = "alibi"

    def build(self, attention: Any, d_model: int) -> LinearBias:
        """Return the module `LinearBias`. See `Positions.build`."""
        return LinearBias(attention, d_model)


class LinearBias(PositionsModule):
    """ALiBi's bias: -slope * |distance| for each head (Press et al. 2022, section 3)."""

    def bias(self, prepared: None) -> Bias:
        """Return the function that computes ALiBi's bias. See `PositionsModule.bias`."""

        def alibi_bias(queries: SequenceInfo, keys: SequenceInfo) -> Tensor:
            """Return -slope * |distance| of each head, query and key: float32 [1 or B, N, T, S]."""
            distance = distances(queries, keys)
            slopes = alibi_slopes(self.attention.num_heads, distance.device)[self.heads]
            return -slopes[None, :, None, None] * distance.abs_()[:, None]

        return alibi_bias


def alibi_slopes(num_heads: int, device: torch.device | str = "cpu") -> Tensor:
    """Return ALiBi's slope of each head: float32 [N].

    If N is a power of two, the slopes are 2^(-8n/N) for n = 1..N. Otherwise the first P slopes are
    those for P heads, where P is the next lower power of two. The others are every second slope
    for 2 P heads, as in the authors' code.
    """
    power = 2 ** int(math.log2(num_heads))
    n = torch.arange(1, num_heads + 1, device=device, dtype=torch.float32)
    return torch.where(n <= power, 2 ** (-8 * n / power), 2 ** (-4 * (2 * (n - power) - 1) / power))
