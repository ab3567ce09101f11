"""Learned absolute position embeddings.

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
    """Learned absolute position embeddings, added to the token embeddings (BERT, GPT-2).

    The table has `offset` rows before the row of position 0 (two in RoBERTa, BART and OPT). The
    position of a token is the number of `counted` tokens before that token. `counted` is "all",
    "attended" (tokens that the attention mask marks as real, as in OPT) or "not-padding" (tokens
    other than the padding id, `offset` - 1, as in RoBERTa). Tokens that are not counted use the
    row directly before the row of position 0.
    """

    kind: Literal["learned"] = "learned"
    max_length: Count
    offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    counted: Literal["all", "attended", "not-padding"] = "all"

    def check(self) -> None:
        """Raise SpecError if padding needs an embedding before position 0 but `offset` is 0."""
        if self.counted != "all" and not self.offset:
            raise SpecError(f'counted="{self.counted}" needs an offset of at least 1.')

    def build(self, width: int) -> LearnedPositions:
        """Return the module `LearnedPositions`. See `AbsolutePositions.build`."""
        return LearnedPositions(self, width)


class LearnedPositions(PartModule):
    """Module of learned absolute position embeddings (Devlin et al. 2018)."""

    def __init__(self, positions: Learned, width: int) -> None:
        super().__init__()
        self.offset = positions.offset
        self.weight = nn.Parameter(torch.empty(positions.max_length + positions.offset, width))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Look up the embeddings of position ids: int64 [B, T] -> [B, T, D]."""
        if self.offset:
            position_ids = position_ids + self.offset
        return nn.functional.embedding(position_ids, self.weight)
