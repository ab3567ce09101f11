"""RoPE: queries and keys are rotated by an angle proportional to the position.

Shape letters: B batch, T positions, N heads, H head_dim, R rotary dimensions of a head.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from trivium.choice import Choice
from trivium.nn.part import Count, Part, Positive
from trivium.nn.positions import Positions, PositionsModule
from trivium.nn.positions.sinusoidal import frequencies, inverse_frequencies
from trivium.nn.sequence_info import SequenceInfo

ScaledRope = tuple[Tensor, float]
"""RoPE frequencies and the attention factor, see `RotaryScaling.rescale`."""


class RotaryScaling(Choice, Part):
    """Spec of a scaling of RoPE frequencies, mostly for sequences longer than in training."""

    needs_length: ClassVar[bool] = False
    """Whether the scaled frequencies depend on the length of the sequence."""

    @property
    def score_factor(self) -> float:
        """The factor of the attention scores in latent attention (MLA); 1 except with YaRN."""
        return 1.0

    @property
    def recompute_length(self) -> int | None:
        """The length beyond which cached keys are recomputed; see `Positions.recompute_length`."""
        return None

    def unsupported_reason(self, rotary_dim: int) -> str:
        """Return the reason why this scaling does not support `rotary_dim`, or "" if it does."""
        return ""

    def rescale(self, frequency: Tensor, base: float, length: Tensor | None) -> ScaledRope:
        """Return the scaled RoPE frequencies and the attention factor.

        The kinds of `transformers` compute the frequencies in its order, so that they are rounded
        alike: a difference in the last place is visible at positions beyond 100,000.

        A frequency is the angle per position of a pair of dimensions. The frequencies are float32
        [R / 2], or [..., R / 2] for lengths [..., 1]. Queries and keys are multiplied by the
        attention factor when RoPE is applied.

        Args:
            frequency: float32 [R / 2], the frequencies without scaling, where R is the number of
                rotary dimensions of a head.
            base: the base of these frequencies.
            length: float32 [..., 1], the sequence lengths; None unless `needs_length`.
        """
        raise NotImplementedError


class LinearScaling(RotaryScaling):
    """Position interpolation: all RoPE angles are divided by `factor` (Chen et al. 2023)."""

    kind: Literal["linear"] = "linear"
    factor: Positive

    def rescale(self, frequency: Tensor, base: float, length: Tensor | None) -> ScaledRope:
        """Return all RoPE frequencies divided by `factor`, and an attention factor of 1."""
        return frequency / self.factor, 1.0


class Llama3Scaling(RotaryScaling):
    """Llama 3.1's scaling: low frequencies are divided by `factor`, high frequencies are kept.

    Low frequencies have wavelengths above original_max_length / low_frequency_factor, and high
    frequencies have wavelengths below original_max_length / high_frequency_factor. Frequencies in
    between are interpolated. Source: Grattafiori et al. 2024.
    """

    kind: Literal["llama3"] = "llama3"
    factor: Positive
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0
    original_max_length: Count = 8192

    def rescale(self, frequency: Tensor, base: float, length: Tensor | None) -> ScaledRope:
        """Return the RoPE frequencies scaled as in Llama 3.1, and an attention factor of 1."""
        low, high = self.low_frequency_factor, self.high_frequency_factor
        turns = self.original_max_length / (2 * math.pi / frequency)  # in the original length
        kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        return kept * frequency + (1.0 - kept) * frequency / self.factor, 1.0


class DynamicScaling(RotaryScaling):
    """Dynamic NTK scaling: for sequences longer than `original_max_length`, RoPE's base increases.

    For a sequence of length L > `original_max_length`, the base is multiplied by
    (1 + factor * (L / original_max_length - 1))^(R / (R - 2)). This divides the lowest frequency
    by 1 + factor * (L / original_max_length - 1) and keeps the highest frequency.

    Source: bloc97 and emozilla 2023, as in `transformers`.
    """

    needs_length: ClassVar[bool] = True
    kind: Literal["dynamic"] = "dynamic"
    factor: Positive
    original_max_length: Count

    def rescale(self, frequency: Tensor, base: float, length: Tensor | None) -> ScaledRope:
        """Return the RoPE frequencies for sequences of `length`, and an attention factor of 1."""
        assert length is not None
        rotary_dim = 2 * len(frequency)
        longest = length.clamp(min=self.original_max_length)
        growth = self.factor * longest / self.original_max_length - (self.factor - 1.0)
        base_of_row = base * growth ** (rotary_dim / max(rotary_dim - 2, 1))
        return 1.0 / inverse_frequencies(base_of_row, rotary_dim, length.device), 1.0


class YarnScaling(RotaryScaling):
    """YaRN: low frequencies are divided by `factor`, high frequencies are kept.

    A frequency is divided by `factor` if its pair of dimensions rotates fewer than `beta_slow`
    times within `original_max_length`. It is kept if the pair rotates more than `beta_fast` times.
    Frequencies in between are interpolated linearly in the pair index. With `truncate`, the first
    pair index of this range is rounded down and the last is rounded up.

    The default of `attention_factor` is 0.1 log(factor) + 1. If `mscale` and `mscale_all_dim` are
    set (DeepSeek-V2), the default is f(mscale) / f(mscale_all_dim), where
    f(m) = 0.1 m log(factor) + 1.

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
        """The factor of latent attention's scores (DeepSeek-V2).

        It is (0.1 mscale_all_dim log(factor) + 1)^2, or 1 if `mscale_all_dim` is not set.
        """
        growth = 0.1 * (self.mscale_all_dim or 0.0) * math.log(max(self.factor, 1.0))
        return (growth + 1.0) ** 2

    def rescale(self, frequency: Tensor, base: float, length: Tensor | None) -> ScaledRope:
        """Return the RoPE frequencies scaled by YaRN, and YaRN's attention factor."""
        pairs = len(frequency)
        first, last = (  # the pair indices with `beta_fast` and `beta_slow` rotations
            pairs * math.log(self.original_max_length / (turns * 2 * math.pi)) / math.log(base)
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        slowed = (torch.arange(pairs, device=frequency.device) - first) / (last - first or 0.001)
        kept = 1.0 - slowed.clamp(0.0, 1.0)
        growth = 0.1 * math.log(max(self.factor, 1.0))
        factor = growth + 1.0
        if self.mscale and self.mscale_all_dim:
            factor = (self.mscale * growth + 1.0) / (self.mscale_all_dim * growth + 1.0)
        inverse = inverse_frequencies(base, 2 * pairs, frequency.device)
        scaled = 1.0 / (self.factor * inverse) * (1.0 - kept) + frequency * kept
        return scaled, self.attention_factor or factor


class LongRopeScaling(RotaryScaling):
    """LongRoPE: each RoPE frequency is divided by its own factor (found by a search in the paper).

    In sequences longer than `original_max_length`, the frequency of pair i is divided by
    long_factor[i], otherwise by short_factor[i]. When a text grows beyond this length in
    generation, the model reads the whole text again with the long factors. The default of
    `attention_factor` is sqrt(1 + log(factor) / log(original_max_length)).

    Source: Ding et al. 2024; the attention factor: Abdin et al. 2024 (Phi-3).
    """

    needs_length: ClassVar[bool] = True
    kind: Literal["longrope"] = "longrope"
    factor: Positive
    original_max_length: Annotated[Count, Field(gt=1)]
    short_factor: tuple[Positive, ...]
    long_factor: tuple[Positive, ...]
    attention_factor: Positive | None = None

    @property
    def recompute_length(self) -> int:
        """`original_max_length`, beyond which all frequencies are different."""
        return self.original_max_length

    def unsupported_reason(self, rotary_dim: int) -> str:
        """Return an error message if there is not one factor per pair of dimensions, else ""."""
        pairs, counts = rotary_dim // 2, (len(self.short_factor), len(self.long_factor))
        if counts == (pairs, pairs):
            return ""
        return f'"longrope" needs {pairs} short and long factors, one per pair, not {counts}.'

    def rescale(self, frequency: Tensor, base: float, length: Tensor | None) -> ScaledRope:
        """Return the RoPE frequencies for sequences of `length`, and the attention factor."""
        assert length is not None
        factors = _constant((self.short_factor, self.long_factor), length.device)
        divisor = torch.where(length > self.original_max_length, factors[1], factors[0])
        growth = math.log(max(self.factor, 1.0)) / math.log(self.original_max_length)
        inverse = inverse_frequencies(base, 2 * len(frequency), length.device)
        return 1.0 / (divisor * inverse), self.attention_factor or math.sqrt(1.0 + growth)


@lru_cache(maxsize=64)
def _copy_constant(values: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    """Return a float32 tensor of these values, which is copied to the device only once."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device)


@torch.compiler.assume_constant_result  # torch.compile warns of a call to a cached function
def _constant(values: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    """Return `_copy_constant(values, device)`, as a constant of a compiled graph."""
    return _copy_constant(values, device)


class Rotary(Positions):
    """RoPE: queries and keys are rotated by position-dependent angles (Su et al. 2021).

    Layout "halves" pairs dimension i of the first half of the rotary dimensions with dimension i of
    the second half, as the LLaMA weights for `transformers` require. Layout "interleaved" pairs
    adjacent dimensions, as in the paper. Only the first int(partial_rotary_factor * head_dim)
    dimensions of a head are rotated (GPT-NeoX: a quarter).
    """

    supports_tp: ClassVar[bool] = True
    kind: Literal["rotary"] = "rotary"
    base: Positive = 10_000.0
    layout: Literal["halves", "interleaved"] = "halves"
    scaling: SerializeAsAny[RotaryScaling] | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0

    @property
    def recompute_length(self) -> int | None:
        """The length at which the scaling changes all frequencies (LongRoPE), or None."""
        return self.scaling.recompute_length if self.scaling else None

    def rotary_dim(self, head_dim: int) -> int:
        """Return the number of dimensions of a head that RoPE rotates."""
        return int(head_dim * self.partial_rotary_factor)

    def unsupported_reason(self, head_dim: int) -> str:
        """Return the reason why this RoPE does not support `head_dim`, or "" if it does.

        The number of rotary dimensions must be even and supported by the scaling.
        """
        rotary_dim = self.rotary_dim(head_dim)
        if rotary_dim % 2 or not rotary_dim:
            which = (
                "it"
                if self.partial_rotary_factor == 1.0
                else f"partial_rotary_factor={self.partial_rotary_factor} of it, {rotary_dim},"
            )
            return f"rotary positions turn pairs of dimensions, so {which} must be even."
        return self.scaling.unsupported_reason(rotary_dim) if self.scaling else ""

    def build(self, attention: Any, d_model: int) -> RotaryPositions:
        """Return the module `RotaryPositions`. See `Positions.build`."""
        return RotaryPositions(attention, d_model)


class RotaryPositions(PositionsModule):
    """RoPE: at position p, pair i of the R rotary dimensions is rotated by p * base^(-2i/R).

    Source: Su et al. 2021, equation 34, where R = H. With a `partial_rotary_factor` below 1 only
    the first R dimensions are rotated (Black et al. 2022, section 2.1). In layout "halves" a pair
    is dimension i of the first half and dimension i of the second half, as in the LLaMA weights for
    `transformers`. In layout "interleaved" (the paper's) a pair is two adjacent dimensions.
    """

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__(attention, width)
        assert isinstance(attention.positions, Rotary)
        self.rotary = attention.positions
        self.scaling = self.rotary.scaling or LinearScaling(factor=1.0)
        self.rotary_dim = self.rotary.rotary_dim(attention.head_dim)

    def prepare(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of RoPE, each [1 or B, 1, T, R].

        The negation in `rotate_half` (half of x is negated) is folded into the sines.
        """
        rotary, position = self.rotary, sequence.positions
        length = _doc_lengths(sequence)[..., None].float() if self.scaling.needs_length else None
        frequency = frequencies(rotary.base, self.rotary_dim, position.device)
        frequency, factor = self.scaling.rescale(frequency, rotary.base, length)
        angle = (position[..., None].float() * frequency)[:, None]
        cosine, sine = factor * angle.cos(), factor * angle.sin()  # [1 or B, 1, T, R / 2]
        if rotary.layout == "interleaved":
            return (
                torch.stack((cosine, cosine), -1).flatten(-2),
                torch.stack((-sine, sine), -1).flatten(-2),
            )
        return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)

    def apply_rotary(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """Apply RoPE to queries or keys, [B, N, T, H]; only the first R dimensions change."""
        if self.rotary_dim < x.shape[-1]:
            first, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
            return torch.cat((self._rotate_pairs(first, prepared), rest), -1)
        return self._rotate_pairs(x, prepared)

    def _rotate_pairs(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate all pairs of dimensions of queries or keys: [B, N, T, R] -> [B, N, T, R]."""
        # Angles need float32; for sines and cosines the precision of x is enough.
        cosine, sine = (part[:, :, : x.shape[2]].to(x.dtype) for part in prepared)
        if self.rotary.layout == "interleaved":
            swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * cosine, swapped, sine)


def _doc_lengths(sequence: SequenceInfo) -> Tensor:
    """Return the length of each token's sequence or packed document: int64 [1 or B, 1 or T].

    With a cache, the tokens of the prefill have the length of the prefill, and each later token has
    the length of the text up to that token, as in `transformers`. Cached keys stay as they are; the
    caller recomputes them where `Spec.recompute_lengths` requires it.
    """
    if sequence.cache_slice is not None and sequence.cache_slice.prefill_lengths is not None:
        prefill_lengths = sequence.cache_slice.prefill_lengths[:, None]
        return torch.maximum(sequence.positions + 1, prefill_lengths)
    last, documents = sequence.positions, sequence.documents
    if sequence.is_token is not None:
        last = last * sequence.is_token.bool()
    if documents is None:
        return last.amax(1, keepdim=True) + 1
    longest = documents.new_zeros(len(documents), int(documents.max()) + 1)
    longest = longest.scatter_reduce(1, documents, last.expand_as(documents), "amax")
    return longest.gather(1, documents) + 1
