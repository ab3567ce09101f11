"""GLM's two learned position embeddings per token: position in the text and within a span.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.nn.part import Count, PartModule
from trivium.nn.positions import AbsolutePositions


class TwoDimensional(AbsolutePositions):
    """GLM's two learned position embeddings: in the text and within a span (Du et al. 2022).

    Tokens of the given text have their position in the text and span position 0. Tokens generated
    for a blank have the text position of the blank and span positions 1, 2, 3, ...
    """

    fills_blanks: ClassVar[bool] = True
    kind: Literal["two-dimensional"] = "two-dimensional"
    max_length: Count

    def build(self, width: int) -> TwoDimensionalPositions:
        """Return the module `TwoDimensionalPositions`. See `AbsolutePositions.build`."""
        return TwoDimensionalPositions(self, width)


class TwoDimensionalPositions(PartModule):
    """The sum of two learned embeddings: position in the text and position within a span (GLM).

    Source: Du et al. 2022, section 2.1.2 (2D positional encoding).
    """

    def __init__(self, positions: TwoDimensional, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions.max_length, width))
        # A span is at most as long as a text; 0 is for tokens outside of spans.
        self.in_span = nn.Parameter(torch.empty(positions.max_length + 1, width))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Embed position ids, which are read as in `as_position_pairs`: [B, T, 2] -> [B, T, D]."""
        in_text, in_span = as_position_pairs(position_ids).unbind(-1)
        vectors = nn.functional.embedding(in_text, self.weight)
        return vectors + nn.functional.embedding(in_span, self.in_span)


def as_position_pairs(position_ids: Tensor) -> Tensor:
    """Return pairs (text position, span position): int64 [B, T] or [B, T, 2] -> [B, T, 2].

    Position ids [B, T] mean that the whole row is one generated span. Then all tokens have text
    position 0, and the span position is the id plus 1.
    """
    if position_ids.ndim == 3:
        return position_ids
    return torch.stack((torch.zeros_like(position_ids), position_ids + 1), -1)
