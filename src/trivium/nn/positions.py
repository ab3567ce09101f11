"""Positions: vectors added to tokens, rotations of queries and keys, biases of scores.

Shape letters: B batch, T query positions, S key positions, D width, N heads, H head_dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.errors import SpecError


class LearnedPositions(nn.Module):
    """One trained vector for each position (Devlin et al. 2018)."""

    def __init__(self, positions: spec.Learned, width: int) -> None:
        super().__init__()
        self.offset = positions.offset
        self.weight = nn.Parameter(torch.empty(positions.max_length + positions.offset, width))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Int64 [B, T] -> [B, T, D]."""
        if self.offset:
            position_ids = position_ids + self.offset
        return nn.functional.embedding(position_ids, self.weight)


class SinusoidalPositions(nn.Module):
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos of the same.

    Source: Vaswani et al. 2017, section 3.5. In halves, all sines come before all cosines.
    """

    def __init__(self, positions: spec.Sinusoidal, width: int) -> None:
        super().__init__()
        self.base, self.width = positions.base, width
        self.in_halves = positions.layout == "halves"

    def forward(self, position_ids: Tensor) -> Tensor:
        """Int64 [B, T] -> float32 [B, T, D]."""
        return sinusoids(position_ids, self.base, self.width, in_halves=self.in_halves)


def sinusoids(position_ids: Tensor, base: float, width: int, *, in_halves: bool = False) -> Tensor:
    """sin(p w_0), cos(p w_0), sin(p w_1), ...: int64 [...] -> float32 [..., D]."""
    angle = position_ids[..., None].float() * frequencies(base, width).to(position_ids.device)
    if in_halves:
        return torch.cat((angle.sin(), angle.cos()), dim=-1)[..., :width]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :width]


def build_positions(
    positions: spec.Learned | spec.Sinusoidal | None, width: int
) -> LearnedPositions | SinusoidalPositions | None:
    """The module that adds absolute positions, if the spec has them."""
    match positions:
        case spec.Learned():
            return LearnedPositions(positions, width)
        case spec.Sinusoidal():
            return SinusoidalPositions(positions, width)
        case None:
            return None


class Rotation:
    """The cosines and sines that turn queries and keys, once per forward pass and kind of layer.

    Pair i of the dimensions of a head is turned by p * base^(-2i/H) (Su et al. 2021, equation 34).
    In layout "halves" a pair is dimension i of the first half and of the second, as in the LLaMA
    weights for `transformers`; "interleaved", as in the paper, it is two neighbours.
    """

    def __init__(self, rotary: spec.Rotary, head_dim: int, position_ids: Tensor) -> None:
        frequency = _scaled(frequencies(rotary.base, head_dim), rotary.scaling)
        angle = (position_ids[..., None].float() * frequency.to(position_ids.device))[:, None]
        cosine, sine = angle.cos(), angle.sin()  # [1 or B, 1, T, H / 2]
        self.is_interleaved = rotary.layout == "interleaved"
        # The sign of the swapped dimension is folded into the sine.
        if self.is_interleaved:
            self.cosine = torch.stack((cosine, cosine), -1).flatten(-2)
            self.sine = torch.stack((-sine, sine), -1).flatten(-2)
        else:
            self.cosine, self.sine = torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)

    def __call__(self, x: Tensor) -> Tensor:
        """Turn queries or keys: [B, N, T, H] -> [B, N, T, H].

        Raises:
            SpecError: another number of positions, or another width, than the angles are for.
        """
        if x.ndim != 4 or x.shape[2:] != self.cosine.shape[2:]:
            raise SpecError(
                f"queries or keys are [B, N, T, H] with T, H = {list(self.cosine.shape[2:])} here, "
                f"not {list(x.shape)}: positions come after heads."
            )
        if self.cosine.dtype != x.dtype:
            # Angles need float32; once they are sines, the precision of what they turn is enough.
            self.cosine, self.sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        if self.is_interleaved:
            swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cosine, swapped, self.sine)


def frequencies(base: float, width: int) -> Tensor:
    """base^(-2i / D) for every pair i of dimensions: float32 [ceil(D / 2)]."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)


def _scaled(frequency: Tensor, scaling: spec.LinearScaling | spec.Llama3Scaling | None) -> Tensor:
    match scaling:
        case None:
            return frequency
        case spec.LinearScaling(factor=factor):
            return frequency / factor
        case spec.Llama3Scaling():
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            turns = scaling.original_max_length * frequency / (2 * math.pi)  # over that context
            kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
            return kept * frequency + (1.0 - kept) * frequency / scaling.factor


class RelativePositionBias(nn.Module):
    """A number for each head and bucket of key position - query position (Raffel et al. 2019).

    Half of the buckets are for later keys if `bidirectional`; else these share bucket 0. Of the
    buckets of a direction the first half are single distances; the others widen logarithmically
    and the last takes all the rest.
    """

    def __init__(self, bias: spec.RelativeBias, num_heads: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.spec, self.bidirectional = bias, bidirectional
        self.weight = nn.Parameter(torch.empty(bias.num_buckets, num_heads))

    def forward(self, distance: Tensor) -> Tensor:
        """Added to scores, by key position - query position: int64 [B, T, S] -> [B, N, T, S]."""
        buckets = relative_buckets(distance, self.spec, bidirectional=self.bidirectional)
        return nn.functional.embedding(buckets, self.weight).permute(0, 3, 1, 2)


def relative_buckets(distance: Tensor, bias: spec.RelativeBias, *, bidirectional: bool) -> Tensor:
    """The bucket of each distance (key - query): int64 [...] -> int64 [...]."""
    buckets, first = bias.num_buckets, torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    single = buckets // 2
    ratio = (distance.clamp(min=1).float() / single).log() / math.log(bias.max_distance / single)
    shared = single + (ratio * (buckets - single)).long()
    return first + torch.where(distance < single, distance, shared.clamp(max=buckets - 1))


class LinearBias(nn.Module):
    """-slope * |distance| for each head (Press et al. 2022, section 3)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, distance: Tensor) -> Tensor:
        """Added to scores, by key position - query position: int64 [B, T, S] -> [B, N, T, S]."""
        slopes = alibi_slopes(self.num_heads, distance.device)
        return -slopes[None, :, None, None] * distance.abs()[:, None]


def alibi_slopes(num_heads: int, device: torch.device | str = "cpu") -> Tensor:
    """The slope of each head: float32 [N].

    2^(-8n/N) for n = 1..N; for an N that is no power of two, those of the power P below it, then
    every second one of 2 P, as in the authors' code.
    """
    power = 2 ** int(math.log2(num_heads))
    n = torch.arange(1, num_heads + 1, device=device, dtype=torch.float32)
    return torch.where(n <= power, 2 ** (-8 * n / power), 2 ** (-4 * (2 * (n - power) - 1) / power))


def check_length(length: int, max_length: int | None) -> None:
    """Raise SpecError for an input longer than the model reads."""
    if max_length is not None and length > max_length:
        raise SpecError(
            f"the input has {length} tokens, but this model reads at most {max_length}: "
            "shorten the text or cut it into pieces."
        )
