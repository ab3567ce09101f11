"""ALiBi: attention scores decrease linearly with distance, with one slope per head.

Shape letters: B batch, T query positions, S key positions, N heads.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from trivium.nn.mask import Bias
from trivium.nn.part import Positive
from trivium.nn.positions import Positions, PositionsModule, distances
from trivium.nn.sequence_info import SequenceInfo


class ALiBi(Positions):
    """ALiBi: a score penalty proportional to distance, one slope per head (Press et al. 2022).

    The penalty is multiplied by `scale`. With `rounding` "bfloat16", the slopes and the products of
    slope and key position are rounded to bfloat16, as in the released code of Falcon, which scales
    the penalty like the scores, by head_dim^-0.5.
    """

    has_scores: ClassVar[bool] = True
    supports_tp: ClassVar[bool] = True
    kind: Literal["alibi"] = "alibi"
    scale: Positive = 1.0
    rounding: Literal["bfloat16"] | None = None

    def build(self, attention: Any, d_model: int) -> LinearBias:
        """Return the module `LinearBias`. See `Positions.build`."""
        return LinearBias(attention, d_model)


class LinearBias(PositionsModule):
    """ALiBi's bias: -slope * |distance| for each head (Press et al. 2022, section 3)."""

    def bias(self, prepared: None) -> Bias:
        """Return the function that computes ALiBi's bias. See `PositionsModule.bias`."""

        def alibi_bias(queries: SequenceInfo, keys: SequenceInfo) -> Tensor:
            """Return -slope * |distance| of each head, query and key: float32 [1 or B, N, T, S]."""
            alibi, device = self.attention.positions, keys.positions.device
            slopes = alibi_slopes(self.attention.num_heads, device)[self.heads, None, None]
            if alibi.rounding == "bfloat16":  # the softmax ignores what all keys have in common
                products = slopes.bfloat16() * keys.positions[:, None, None]
                rows = queries.positions.shape[1]
                return alibi.scale * products.float().expand(-1, -1, rows, -1)
            penalty = slopes * distances(queries, keys).abs_()[:, None]
            return -penalty if alibi.scale == 1.0 else -alibi.scale * penalty

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
