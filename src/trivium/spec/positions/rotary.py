"""Rotary positions and their scalings to longer texts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trivium.spec.part import Count, Part, Positive
from trivium.spec.positions import Positions


class LinearScaling(Part):
    """Every rotary angle divided by `factor` (Chen et al. 2023, position interpolation)."""

    kind: Literal["linear"] = "linear"
    factor: Positive


class Llama3Scaling(Part):
    """Slow rotary frequencies divided by `factor`, fast ones kept, those between blended.

    Slow: a wavelength above original_max_length / low_frequency_factor; fast: one below
    original_max_length / high_frequency_factor (Llama 3.1, Grattafiori et al. 2024).
    """

    kind: Literal["llama3"] = "llama3"
    factor: Positive
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0
    original_max_length: Count = 8192


RotaryScaling = Annotated[LinearScaling | Llama3Scaling, Field(discriminator="kind")]


class Rotary(Positions):
    """Queries and keys are turned by an angle that grows with position (Su et al. 2021).

    Layout "halves" turns dimension i of the first half of a head with that of the second, as the
    LLaMA weights for `transformers` want it; "interleaved" turns neighbours, as in the paper.
    Of every head the first `share` of its dimensions is turned, rounded down (GPT-NeoX: a quarter).
    """

    divides: ClassVar[bool] = True
    kind: Literal["rotary"] = "rotary"
    base: Positive = 10_000.0
    layout: Literal["halves", "interleaved"] = "halves"
    scaling: RotaryScaling | None = None
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0

    def turned(self, head_dim: int) -> int:
        """How many dimensions of a head are turned."""
        return int(head_dim * self.share)

    def refuses(self, head_dim: int) -> str:
        """See `Positions.refuses`."""
        turned = self.turned(head_dim)
        if turned % 2 or not turned:
            which = "it" if self.share == 1.0 else f"share={self.share} of it, {turned},"
            return f"rotary positions turn pairs of dimensions, so {which} must be even."
        return ""
