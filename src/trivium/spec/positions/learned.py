"""Trained absolute positions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trivium.errors import SpecError
from trivium.spec.part import Count
from trivium.spec.positions import AbsolutePositions


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
