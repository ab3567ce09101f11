"""Kinds of positions: vectors added to tokens, and what attention knows of positions."""

from __future__ import annotations

from typing import Any, ClassVar

from trivium.choice import Choice, import_members
from trivium.spec.part import Part


class AbsolutePositions(Choice, Part):
    """A vector of each position, added to that of the token."""

    fills_blanks: ClassVar[bool] = False
    """Whether they tell a decoder which blank of a text its tokens fill."""
    max_length: Any
    """Where they end, in tokens; None: nowhere."""


class Positions(Choice, Part):
    """How attention knows where queries and keys are."""

    has_scores: ClassVar[bool] = False
    """Whether something is added to the scores of attention."""
    divides: ClassVar[bool] = False
    """Whether tensor parallelism can divide them by heads."""

    num_token_types: ClassVar[int] = 0
    """Types of tokens (sentence A and B) that they compare."""

    @property
    def products(self) -> int:
        """How many products of vectors a score is the sum of, with that of query and key."""
        return 1

    def refuses(self, head_dim: int) -> str:
        """Why heads of this width cannot have them; empty where they can."""
        return ""

    def flops(self, attended: float, num_heads: int, head_dim: int) -> float:
        """What they add to `Mixer.flops` of their attention."""
        return 0.0

    def kept_numbers(self, length: int, num_heads: int, head_dim: int) -> int:
        """What they add to `Mixer.kept_numbers` of their attention."""
        return 0


import_members(__name__, __path__)
