"""Rotary positions: queries and keys are turned by an angle that grows with position.

Shape letters: B batch, T positions, N heads, H head_dim, R turned dimensions of it.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from trivium.choice import Choice
from trivium.nn.context import Context
from trivium.nn.part import Count, Part, Positive
from trivium.nn.positions import Positions, PositionsModule
from trivium.nn.positions.sinusoidal import frequencies


class RotaryScaling(Choice, Part):
    """How the frequencies of rotary positions change, mostly for texts longer than in training."""

    needs_length: ClassVar[bool] = False
    """Whether the frequencies depend on the length of the text."""

    @property
    def score_factor(self) -> float:
        """The factor of the scores of latent attention, in which only a part of a head turns."""
        return 1.0

    def refuses(self, turned: int) -> str:
        """Why heads of which `turned` dimensions are turned cannot have it; empty: they can."""
        return ""

    def scaled(self, base: float, turned: int, length: Tensor | None) -> tuple[Tensor, float]:
        """Return the frequencies and the attention factor.

        A frequency is the angle per position, float32 [R / 2], or [..., R / 2] for lengths
        [..., 1]. Turned queries and turned keys are multiplied by the attention factor.

        Args:
            base: the base of the frequencies without scaling.
            turned: R.
            length: float32 [..., 1], the lengths of texts; None unless `needs_length`.
        """
        raise NotImplementedError


class LinearScaling(RotaryScaling):
    """Every rotary angle divided by `factor` (Chen et al. 2023, position interpolation)."""

    kind: Literal["linear"] = "linear"
    factor: Positive

    def scaled(self, base: float, turned: int, length: Tensor | None) -> tuple[Tensor, float]:
        """See `RotaryScaling.scaled`."""
        return frequencies(base, turned) / self.factor, 1.0


class Llama3Scaling(RotaryScaling):
    """Slow rotary frequencies divided by `factor`, fast ones kept, those between blended.

    Slow: a wavelength above original_max_length / low_frequency_factor; fast: one below
    original_max_length / high_frequency_factor (Llama 3.1, Grattafiori et al. 2024).
    """

    kind: Literal["llama3"] = "llama3"
    factor: Positive
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0
    original_max_length: Count = 8192

    def scaled(self, base: float, turned: int, length: Tensor | None) -> tuple[Tensor, float]:
        """See `RotaryScaling.scaled`."""
        low, high = self.low_frequency_factor, self.high_frequency_factor
        frequency = frequencies(base, turned)
        turns = self.original_max_length * frequency / (2 * math.pi)  # over that context
        kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        return kept * frequency + (1.0 - kept) * frequency / self.factor, 1.0


class DynamicScaling(RotaryScaling):
    """NTK-aware scaling: for a text of length L > `original_max_length` the base grows.

    The base is multiplied by (1 + factor * (L / original_max_length - 1))^(R / (R - 2)). The
    slowest frequency is divided by the number in parentheses, and the fastest is kept. Source:
    bloc97 and emozilla 2023, as in `transformers`.
    """

    needs_length: ClassVar[bool] = True
    kind: Literal["dynamic"] = "dynamic"
    factor: Positive
    original_max_length: Count

    def scaled(self, base: float, turned: int, length: Tensor | None) -> tuple[Tensor, float]:
        """See `RotaryScaling.scaled`."""
        assert length is not None
        excess = (length / self.original_max_length - 1.0).clamp(min=0.0)
        pair = torch.arange(turned // 2, device=length.device)
        # The power of the base that pair i of M has is -i / M, and R / (R - 2) is M / (M - 1).
        slowing = (1.0 + self.factor * excess) ** -(pair / max(turned // 2 - 1, 1))
        return frequencies(base, turned).to(length.device) * slowing, 1.0


class YarnScaling(RotaryScaling):
    """YaRN: pairs that turn seldom in `original_max_length` are slowed, fast ones are kept.

    A frequency is divided by `factor` where its pair turns fewer than `beta_slow` times, kept where
    it turns more than `beta_fast` times, and blended between, linearly in the number of the pair
    (both ends rounded outwards with `truncate`). `attention_factor` is 0.1 log(factor) + 1 unless
    set; with `mscale` and `mscale_all_dim` it is the ratio of 0.1 m log(factor) + 1 for both
    (DeepSeek-V2).

    Source: Peng et al. 2023, section 3.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Positive
    original_max_length: Count
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    truncate: bool = True
    attention_factor: Positive | None = None
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None

    @property
    def score_factor(self) -> float:
        """(0.1 mscale_all_dim log(factor) + 1)^2 (DeepSeek-V2)."""
        growth = 0.1 * (self.mscale_all_dim or 0.0) * math.log(max(self.factor, 1.0))
        return (growth + 1.0) ** 2

    def scaled(self, base: float, turned: int, length: Tensor | None) -> tuple[Tensor, float]:
        """See `RotaryScaling.scaled`."""
        first, last = (  # the pairs, counted from 0, that turn so many times
            turned * math.log(self.original_max_length / (2 * math.pi * turns), base) / 2
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, turned - 1)
        slowed = (torch.arange(turned // 2) - first) / (last - first or 0.001)
        slowed, frequency = slowed.clamp(0.0, 1.0), frequencies(base, turned)
        growth = 0.1 * math.log(max(self.factor, 1.0))
        factor = growth + 1.0
        if self.mscale and self.mscale_all_dim:
            factor = (self.mscale * growth + 1.0) / (self.mscale_all_dim * growth + 1.0)
        frequency = slowed * frequency / self.factor + (1.0 - slowed) * frequency
        return frequency, self.attention_factor or factor


class LongRopeScaling(RotaryScaling):
    """LongRoPE: every frequency divided by a number of its own, which a search has found.

    The number of pair i is long_factor[i] for a text longer than `original_max_length`, else
    short_factor[i]. `attention_factor` is sqrt(1 + log(factor) / log(original_max_length)) unless
    set.

    Source: Ding et al. 2024; the attention factor: Abdin et al. 2024 (Phi-3).
    """

    needs_length: ClassVar[bool] = True
    kind: Literal["longrope"] = "longrope"
    factor: Positive
    original_max_length: Annotated[Count, Field(gt=1)]
    short_factor: tuple[Positive, ...]
    long_factor: tuple[Positive, ...]
    attention_factor: Positive | None = None

    def refuses(self, turned: int) -> str:
        """See `RotaryScaling.refuses`."""
        pairs, counts = turned // 2, (len(self.short_factor), len(self.long_factor))
        if counts == (pairs, pairs):
            return ""
        return f'"longrope" needs {pairs} short and long factors, one per pair, not {counts}.'

    def scaled(self, base: float, turned: int, length: Tensor | None) -> tuple[Tensor, float]:
        """See `RotaryScaling.scaled`."""
        assert length is not None
        factors = length.new_tensor((self.short_factor, self.long_factor))
        divisor = torch.where(length > self.original_max_length, factors[1], factors[0])
        growth = math.log(max(self.factor, 1.0)) / math.log(self.original_max_length)
        frequency = frequencies(base, turned).to(length.device) / divisor
        return frequency, self.attention_factor or math.sqrt(1.0 + growth)


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
    scaling: SerializeAsAny[RotaryScaling] | None = None
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
        return self.scaling.refuses(turned) if self.scaling else ""

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
        self.scaling = self.rotary.scaling or LinearScaling(factor=1.0)
        self.turned = self.rotary.turned(attention.head_dim)

    def prepare(
        self, context: Context, keys: Context, table: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines [1 or B, 1, T, R]; the sign of the swapped dimension is in the sine."""
        rotary, position = self.rotary, context.positions
        length = _lengths(context)[..., None].float() if self.scaling.needs_length else None
        frequency, factor = self.scaling.scaled(rotary.base, self.turned, length)
        angle = (position[..., None].float() * frequency.to(position.device))[:, None]
        cosine, sine = factor * angle.cos(), factor * angle.sin()  # [1 or B, 1, T, R / 2]
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


def _lengths(context: Context) -> Tensor:
    """The length of the text that a token is in: int64 [1 or B, 1 or T].

    In a cache it is that of the pass that began the text, for all later tokens of its slot, since
    the keys that the slot keeps were turned by its frequencies.
    """
    if context.span is not None and context.span.prefill is not None:
        return context.span.prefill[:, None]
    last, documents = context.positions, context.documents
    if context.real is not None:
        last = last * context.real.bool()
    if documents is None:
        return last.amax(1, keepdim=True) + 1
    longest = documents.new_zeros(len(documents), int(documents.max()) + 1)
    longest = longest.scatter_reduce(1, documents, last.expand_as(documents), "amax")
    return longest.gather(1, documents) + 1
