"""Sines and cosines of the absolute position."""

from __future__ import annotations

from typing import Literal

from trivium.spec.part import Count, Positive
from trivium.spec.positions import AbsolutePositions


class Sinusoidal(AbsolutePositions):
    """Sines and cosines of the absolute position, added (Vaswani et al. 2017, section 3.5).

    Layout "interleaved" is the paper's (sine, cosine, sine, ...); "halves" has all sines first
    (Marian). `max_length` is where a family ends them.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Positive = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    max_length: Count | None = None
