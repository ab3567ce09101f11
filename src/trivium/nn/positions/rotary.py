"""Rotary positions: queries and keys are turned by an angle that grows with position.

Shape letters: B batch, T positions, N heads, H head_dim, R turned dimensions of it.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from trivium.nn.context import Context
from trivium.nn.part import Count, Part, Positive
from trivium.nn.positions import Positions, PositionsModule
from trivium.nn.positions.sinusoidal import frequencies


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

    def build(self, attention: Any, d_model: int) -> RotaryPositions:
        """See `Positions.build`."""
        return RotaryPositions(attention, d_model)


class RotaryPositions(PositionsModule):
    """Pair i of the R turned dimensions of a head is turned by p * base^(-2i/R).

    Source: Su et al. 2021, equation 34, where R = H. With a `share` only the first R dimensions are
    turned (Black et al. 2022, section 2.1). In layout "halves" a pair is dimension i of the first
    half and of the second, as in the LLaMA weights for `transformers`; "interleaved", as in the
    paper, it is two neighbours.
    """

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__(attention, width)
        assert isinstance(attention.positions, Rotary)
        self.rotary = attention.positions
        self.turned = self.rotary.turned(attention.head_dim)

    def prepare(
        self, context: Context, keys: Context, table: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines [1 or B, 1, T, R]; the sign of the swapped dimension is in the sine."""
        rotary, position = self.rotary, context.positions
        frequency = _scaled(frequencies(rotary.base, self.turned), rotary.scaling)
        angle = (position[..., None].float() * frequency.to(position.device))[:, None]
        cosine, sine = angle.cos(), angle.sin()  # [1 or B, 1, T, R / 2]
        if rotary.layout == "interleaved":
            return (
                torch.stack((cosine, cosine), -1).flatten(-2),
                torch.stack((-sine, sine), -1).flatten(-2),
            )
        return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)

    def turn(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """Turn queries or keys: [B, N, T, H] -> [B, N, T, H]."""
        if self.turned < x.shape[-1]:
            first, rest = x[..., : self.turned], x[..., self.turned :]
            return torch.cat((self._turn(first, prepared), rest), -1)
        return self._turn(x, prepared)

    def _turn(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        # Angles need float32; once they are sines, the precision of what they turn is enough.
        cosine, sine = (part[:, :, : x.shape[2]].to(x.dtype) for part in prepared)
        if self.rotary.layout == "interleaved":
            swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * cosine, swapped, sine)


def _scaled(frequency: Tensor, scaling: LinearScaling | Llama3Scaling | None) -> Tensor:
    match scaling:
        case None:
            return frequency
        case LinearScaling(factor=factor):
            return frequency / factor
        case Llama3Scaling():
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            turns = scaling.original_max_length * frequency / (2 * math.pi)  # over that context
            kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
            return kept * frequency + (1.0 - kept) * frequency / scaling.factor
