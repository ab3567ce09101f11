"""Where a token stands: vectors that are added, rotations of queries and keys, biases of scores.

Shape letters: B batch, T query positions, S key positions, D width, N heads, H head_dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.picked import Picked


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

    Source: Vaswani et al. 2017, section 3.5. In halves, all sines stand before all cosines.
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
    """The module that adds absolute positions, if the description has them."""
    match positions:
        case spec.Learned():
            return LearnedPositions(positions, width)
        case spec.Sinusoidal():
            return SinusoidalPositions(positions, width)
        case None:
            return None


class Rotation:
    """The cosines and sines that turn queries and keys, computed once a forward pass.

    Dimension i of the first half of a head and dimension i of the second half are turned by
    p * base^(-2i/H). Source: Su et al. 2021, equation 34; pairs are taken from the two halves,
    as in the released LLaMA weights for `transformers`, and not from neighbours.
    """

    def __init__(self, rotary: spec.Rotary, head_dim: int, position_ids: Tensor) -> None:
        turns = _scaled(frequencies(rotary.base, head_dim), rotary.scaling)
        angle = (position_ids[..., None].float() * turns.to(position_ids.device))[:, None]
        self.cosine = torch.cat((angle, angle), dim=-1).cos()
        # The sign of the rotated half is folded into the sine.
        self.sine = torch.cat((-angle.sin(), angle.sin()), dim=-1)

    @classmethod
    def of(cls, cosine: Tensor, sine: Tensor) -> Rotation:
        """The same again from its two tensors."""
        rotation = cls.__new__(cls)
        rotation.cosine, rotation.sine = cosine, sine
        return rotation

    def __call__(self, x: Tensor, picked: Picked | None = None) -> Tensor:
        """Turn [B, N, T, H], or the picked positions of it, [B, N, P, H]."""
        if self.cosine.dtype != x.dtype:
            # Angles need float32; once they are sines, the precision of what they turn is enough.
            self.cosine, self.sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        cosine, sine = self.cosine, self.sine
        if picked is not None:
            cosine, sine = picked.queries(cosine), picked.queries(sine)
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * cosine, swapped, sine)


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


class RelativeBias(nn.Module):
    """A number for each head and bucket of key position - query position (Raffel et al. 2019).

    Two ways ("bidirectional"), half of the buckets are for later keys. Of each half the first half
    are single distances; the others widen logarithmically and the last takes all the rest.
    """

    def __init__(self, bias: spec.RelativeBias, num_heads: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.spec, self.bidirectional = bias, bidirectional
        self.weight = nn.Parameter(torch.empty(bias.num_buckets, num_heads))

    def forward(self, queries: Tensor, keys: int) -> Tensor:
        """What is added to scores: positions of queries int64 [B, T] -> [B, N, T, S]."""
        distance = torch.arange(keys, device=queries.device) - queries[..., None]
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


class ALiBi(nn.Module):
    """-slope * |distance| for each head (Press et al. 2022, section 3).

    Slopes are 2^(-8n/N) for n = 1..N; for an N that is no power of two, those of the power below,
    then every second one of the power above, as the authors' code has it.
    """

    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def forward(self, queries: Tensor, keys: int) -> Tensor:
        """What is added to scores: positions of queries int64 [B, T] -> [B, N, T, S]."""
        distance = torch.arange(keys, device=queries.device) - queries[..., None]
        return -self.slopes[None, :, None, None] * distance.abs()[:, None]


def alibi_slopes(num_heads: int) -> Tensor:
    """The slope of each head: float32 [N]."""
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    between = [2 ** (-4 * n / power) for n in range(1, 2 * power + 1, 2)]
    return torch.tensor((slopes + between)[:num_heads])


def check_length(length: int, max_length: int | None) -> None:
    """Refuse an input longer than the model's positions, before it becomes an index error."""
    if max_length is not None and length > max_length:
        raise SpecError(
            f"the input has {length} tokens, but this model's positions end at {max_length}: "
            "shorten the text or cut it into pieces."
        )
