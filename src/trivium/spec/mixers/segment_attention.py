"""Attention with a memory of earlier segments."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import SerializeAsAny

from trivium.errors import SpecError
from trivium.spec.mixers.attention import Attention
from trivium.spec.patterns import Pattern


class SegmentAttention(Attention):
    """Attention that remembers the last inputs of its layer: Transformer-XL (Dai et al. 2019).

    It remembers as many tokens as its pattern reaches: `pattern=Sliding(window=150)` is a memory of
    150 tokens, and a token sees the 150 before it, wherever segments begin. With a memory as long
    as the text it is the same as other attention. In training with state
    (`objective.carry_state`) a row is a segment.
    """

    encodes: ClassVar[bool] = False
    carries: ClassVar[bool] = True
    kind: Literal["segment-attention"] = "segment-attention"  # type: ignore[assignment]
    pattern: SerializeAsAny[Pattern]  # type: ignore[reportGeneralTypeIssues]

    @property
    def memory(self) -> int:
        """The number of tokens that a layer remembers."""
        return self.pattern.reach or 0  # `check` refuses a pattern without a reach

    def check(self) -> None:
        """Raise SpecError for a memory without an end."""
        super().check()
        if self.pattern.reach is None:
            raise SpecError(
                f'a pattern of kind "{self.pattern.kind}" reaches all tokens, and the memory of '
                "segment-attention has an end: give it Sliding(window=...)."
            )
