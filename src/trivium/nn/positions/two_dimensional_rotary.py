"""ChatGLM's RoPE: each half of a head is rotated by one of GLM's two position ids.

Shape letters: B batch, T positions, N heads, H head_dim.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.nn.part import Positive
from trivium.nn.positions import Positions, PositionsModule
from trivium.nn.positions.sinusoidal import frequencies
from trivium.nn.positions.two_dimensional import as_position_pairs
from trivium.nn.sequence_info import SequenceInfo


class TwoDimensionalRotary(Positions):
    """RoPE with GLM's two position ids per token (ChatGLM-6B, see `TwoDimensional`).

    The first half of a head is rotated by the position in the text, the second half by the position
    within a span.
    """

    supports_tp: ClassVar[bool] = True
    fills_blanks: ClassVar[bool] = True
    kind: Literal["two-dimensional-rotary"] = "two-dimensional-rotary"
    base: Positive = 10_000.0

    def unsupported_reason(self, head_dim: int) -> str:
        """Return the reason why this RoPE does not support `head_dim`, or "" if it does."""
        if head_dim % 4:
            return "two-dimensional rotary positions need a multiple of 4: pairs in both halves."
        return ""

    def build(self, attention: Any, d_model: int) -> TwoDimensionalRotaryPositions:
        """Return the module `TwoDimensionalRotaryPositions`. See `Positions.build`."""
        return TwoDimensionalRotaryPositions(attention, d_model)


class TwoDimensionalRotaryPositions(PositionsModule):
    """RoPE (Su et al. 2021) in both halves of a head, each with its own position id.

    In a half of H / 2 dimensions, pair i is dimension i and dimension i + H / 4. At position p, it
    is rotated by p * base^(-4i/H).

    Source: the released code of ChatGLM-6B; the position ids: Du et al. 2022, section 2.1.2.
    """

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__(attention, width)
        assert isinstance(attention.positions, TwoDimensionalRotary)
        self.base, self.half_dim = attention.positions.base, attention.head_dim // 2

    def prepare(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of RoPE, each [1 or B, 1, T, H].

        The minus sign of the first member of each rotated pair is folded into the sines.
        """
        pairs = as_position_pairs(sequence.positions)
        frequency = frequencies(self.base, self.half_dim, pairs.device)
        angle = (pairs[..., None].float() * frequency)[:, None]  # [1 or B, 1, T, 2, H / 4]
        cosine, sine = angle.cos(), angle.sin()
        return (
            torch.cat((cosine, cosine), -1).flatten(-2),
            torch.cat((-sine, sine), -1).flatten(-2),
        )

    def apply_rotary(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """Apply RoPE to queries or keys: [B, N, T, H], same shape."""
        # Angles need float32; for sines and cosines the precision of x is enough.
        cosine, sine = (part[:, :, : x.shape[2]].to(x.dtype) for part in prepared)
        swapped = x.unflatten(-1, (2, self.half_dim)).roll(self.half_dim // 2, dims=-1).flatten(-2)
        return torch.addcmul(x * cosine, swapped, sine)
