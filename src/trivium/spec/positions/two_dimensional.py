"""Positions of two numbers: where a span was in its text, and where a token is in the span."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.spec.part import Count
from trivium.spec.positions import AbsolutePositions


class TwoDimensional(AbsolutePositions):
    """Two trained vectors, of a place in the text and of one in a span (Du et al. 2022, GLM).

    Tokens that are given have their place in the text, and 0. Tokens that are generated for a blank
    have the place of the blank, and 1, 2, 3, ...
    """

    fills_blanks: ClassVar[bool] = True
    kind: Literal["two-dimensional"] = "two-dimensional"
    max_length: Count
