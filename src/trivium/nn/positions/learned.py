"""Trained absolute positions.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.nn.part import Count, PartModule
from trivium.nn.positions import AbsolutePositions


class Learned(AbsolutePositions):
    """One trained vector for each absolute position, added to the token's (BERT, GPT-2).

    The table has `offset` rows before that of the first position (RoBERTa, BART and OPT, whose
    first two rows once stood for padding). A token's position is the number of tokens before it
    that are `counted`: all of them, those that the attention mask marks as real (OPT), or those
    that are not the padding token, `offset` - 1 (RoBERTa). Tokens that are not counted read the row
    before that of the first position.
    """

    kind: Literal["learned"] = "learned"
    max_length: Count
    offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    counted: Literal["all", "attended", "not-padding"] = "all"

    def check(self) -> None:
        """Raise SpecError where padding has no row of the table."""
        if self.counted != "all" and not self.offset:
            raise SpecError(f'counted="{self.counted}" needs an offset of at least 1.')

    def build(self, width: int) -> LearnedPositions:
        """See `AbsolutePositions.build`."""
        return LearnedPositions(self, width)


class LearnedPositions(PartModule):
    """One trained vector for each position (Devlin et al. 2018)."""

    def __init__(self, positions: Learned, width: int) -> None:
        super().__init__()
        self.offset = positions.offset
        self.weight = nn.Parameter(torch.empty(positions.max_length + positions.offset, width))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Int64 [B, T] -> [B, T, D]."""
        if self.offset:
            position_ids = position_ids + self.offset
        return nn.functional.embedding(position_ids, self.weight)
