"""Where a token stands: vectors that are added, and rotations of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.errors import SpecError


class LearnedPositions(nn.Module):
    """One trained vector for each position (Devlin et al. 2018)."""

    def __init__(self, positions: spec.Learned, width: int) -> None:
        super().__init__()
        self.max_length = positions.max_length
        self.weight = nn.Parameter(torch.empty(positions.max_length, width))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Int64 [B, T] -> [B, T, D]."""
        return nn.functional.embedding(position_ids, self.weight)


class SinusoidalPositions(nn.Module):
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos of the same.

    Source: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, positions: spec.Sinusoidal, width: int) -> None:
        super().__init__()
        self.base, self.width = positions.base, width

    def forward(self, position_ids: Tensor) -> Tensor:
        """Int64 [B, T] -> float32 [B, T, D]."""
        return sinusoids(position_ids, self.base, self.width)


def sinusoids(position_ids: Tensor, base: float, width: int) -> Tensor:
    """sin(p w_0), cos(p w_0), sin(p w_1), ...: int64 [...] -> float32 [..., D]."""
    angle = _angles(position_ids, base, width)
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
        angle = _angles(position_ids, rotary.base, head_dim)[:, None]
        self.cosine = torch.cat((angle, angle), dim=-1).cos()
        # The sign of the rotated half is folded into the sine.
        self.sine = torch.cat((-angle.sin(), angle.sin()), dim=-1)

    def __call__(self, x: Tensor) -> Tensor:
        """Turn [B, N, T, H]."""
        if self.cosine.dtype != x.dtype:
            # Angles need float32; once they are sines, the precision of what they turn is enough.
            self.cosine, self.sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cosine, swapped, self.sine)


def frequencies(base: float, width: int) -> Tensor:
    """base^(-2i / D) for every pair i of dimensions: float32 [ceil(D / 2)]."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)


def _angles(position_ids: Tensor, base: float, width: int) -> Tensor:
    """Position times frequency: int64 [...] -> float32 [..., ceil(D / 2)]."""
    return position_ids[..., None].float() * frequencies(base, width).to(position_ids.device)


def check_length(length: int, max_length: int | None) -> None:
    """Refuse an input longer than the model's positions, before it becomes an index error."""
    if max_length is not None and length > max_length:
        raise SpecError(
            f"the input has {length} tokens, but this model's positions end at {max_length}: "
            "shorten the text or cut it into pieces."
        )
