"""Relative positions against the papers' formulas: buckets, slopes and scaled rotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.nn.attention import Attention
from trivium.nn.mask import Mask
from trivium.nn.positions import (
    ALiBi,
    RelativeBias,
    Rotation,
    SinusoidalPositions,
    alibi_slopes,
    relative_buckets,
)

BUCKETS = [(32, 128), (32, 100), (8, 20), (64, 512), (16, 17), (4, 3)]
ROWS, HEADS, LENGTH, HEAD_DIM, WIDTH = 2, 3, 7, 10, 13


def bucket_of(distance: int, num_buckets: int, max_distance: int, *, bidirectional: bool) -> int:
    """Raffel et al. 2019, section 2.1, as released, in whole numbers.

    With E buckets of one distance each and W that widen, distance d >= E is in bucket E + k for
    the largest k with (d / E)^W >= (max_distance / E)^k.
    """
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(0, -distance)
    single = num_buckets // 2
    if distance < single:
        return first + distance
    wide, k = num_buckets - single, 0
    while k + 1 < wide:
        # Both sides times single^(wide + k + 1).
        if distance**wide * single ** (k + 1) < max_distance ** (k + 1) * single**wide:
            break
        k += 1
    return first + single + k


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), BUCKETS)
def test_buckets(num_buckets, max_distance, bidirectional):
    distances = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    description = spec.RelativeBias(num_buckets=num_buckets, max_distance=max_distance)
    found = relative_buckets(distances, description, bidirectional=bidirectional)
    expected = [
        bucket_of(d, num_buckets, max_distance, bidirectional=bidirectional)
        for d in distances.tolist()
    ]
    assert found.tolist() == expected
    # Every bucket is used but one: with distance 0 among the earlier keys, none is 0 and later.
    used = set(expected)
    largest = set(range(num_buckets)) - ({num_buckets // 2} if bidirectional else set())
    assert used == largest


def test_buckets_of_t5_at_the_places_where_they_change():
    """32 buckets up to 128: single to 7 (15 where causal), the last one from 91 (113) on."""

    def found(*distances: int, bidirectional: bool) -> list[int]:
        places = torch.tensor(distances)
        return relative_buckets(places, spec.RelativeBias(), bidirectional=bidirectional).tolist()

    two_ways = found(0, -7, -8, -90, -91, 1, 91, bidirectional=True)
    assert two_ways == [0, 7, 8, 14, 15, 17, 31]
    causal = found(5, 0, -15, -16, -112, -113, bidirectional=False)
    assert causal == [0, 0, 15, 16, 30, 31]


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_of_a_stack(bidirectional, start):
    description = spec.RelativeBias(num_buckets=8, max_distance=20)
    module = RelativeBias(description, HEADS, bidirectional=bidirectional)
    torch.nn.init.normal_(module.weight)
    queries, keys = 5, start + 5
    found = module(torch.arange(start, keys)[None], keys)
    assert found.shape == (1, HEADS, queries, keys)
    for head, t, s in np.ndindex(HEADS, queries, keys):
        bucket = bucket_of(s - (start + t), 8, 20, bidirectional=bidirectional)
        assert found[0, head, t, s] == module.weight[bucket, head]


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 16, 40, 112])
def test_alibi_slopes(heads):
    """A geometric sequence from 2^(-8/N) with that ratio (Press et al. 2022, section 3).

    Where N is no power of two: that of the power P below, then that of 2 P from its first on,
    every second one (as the authors' code has it).
    """
    below = 2 ** math.floor(math.log2(heads))

    def sequence(n: int) -> list[float]:
        return [2.0 ** (-8.0 / n * (i + 1)) for i in range(n)]

    expected = (sequence(below) + sequence(2 * below)[::2])[:heads]
    np.testing.assert_allclose(alibi_slopes(heads).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("start", [0, 6])
def test_alibi_bias(start):
    found = ALiBi(HEADS)(torch.arange(start, start + 5)[None], start + 5)
    slopes = alibi_slopes(HEADS)
    assert found.shape == (1, HEADS, 5, start + 5)
    for head, t, s in np.ndindex(HEADS, 5, start + 5):
        expected = -slopes[head].item() * abs(s - (start + t))
        assert found[0, head, t, s].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("positions", [spec.RelativeBias(num_buckets=8), spec.ALiBi()])
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_a_bias_is_added_to_scores(positions, context):
    """softmax(q . k * scale + b) v, of a causal layer with scale 1 as in T5."""
    description = spec.Attention(
        num_heads=HEADS, head_dim=HEAD_DIM, bias=False, scale=1.0, positions=positions
    )
    module = Attention(description, WIDTH, 0.0).double()
    x = torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64) * 0.3
    bias = torch.randn(1, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    with context():
        found = module(x, Mask(causal=True), places=bias).detach().numpy()

    def project(linear) -> np.ndarray:
        projected = x.numpy() @ linear.weight.detach().numpy().T
        return projected.reshape(ROWS, LENGTH, HEADS, HEAD_DIM)

    query, key, value = (project(linear) for linear in (module.query, module.key, module.value))
    joined = np.zeros((ROWS, LENGTH, HEADS, HEAD_DIM))
    for row, t, head in np.ndindex(ROWS, LENGTH, HEADS):
        scores = [query[row, t, head] @ key[row, s, head] for s in range(t + 1)]
        weights = np.exp(scores + bias[0, head, t, : t + 1].numpy())
        weights /= weights.sum()
        joined[row, t, head] = weights @ value[row, : t + 1, head]
    expected = joined.reshape(ROWS, LENGTH, -1) @ module.output.weight.detach().numpy().T
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def frequency_of(i: int, rotary: spec.Rotary, head_dim: int) -> float:
    """Radians a position of pair i: Su et al. 2021; Chen et al. 2023; Grattafiori et al. 2024."""
    frequency = rotary.base ** (-2.0 * i / head_dim)
    match rotary.scaling:
        case None:
            return frequency
        case spec.LinearScaling(factor=factor):
            return frequency / factor
        case spec.Llama3Scaling() as scaling:
            wavelength = 2 * math.pi / frequency
            longest = scaling.original_max_length / scaling.low_frequency_factor
            shortest = scaling.original_max_length / scaling.high_frequency_factor
            if wavelength < shortest:
                return frequency
            if wavelength > longest:
                return frequency / scaling.factor
            smooth = scaling.original_max_length / wavelength - scaling.low_frequency_factor
            smooth /= scaling.high_frequency_factor - scaling.low_frequency_factor
            return (1 - smooth) * frequency / scaling.factor + smooth * frequency


SCALINGS = [
    None,
    spec.LinearScaling(factor=4.0),
    spec.Llama3Scaling(factor=8.0),
    spec.Llama3Scaling(factor=32.0),
    spec.Llama3Scaling(
        factor=3.0, low_frequency_factor=0.5, high_frequency_factor=7.0, original_max_length=100
    ),
]


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaled_rotations(scaling, base):
    head_dim, rotary = 64, spec.Rotary(base=base, scaling=scaling)
    positions = torch.tensor([[0, 1, 17, 50]])
    half = head_dim // 2
    # Each pair is the number 1, which a rotation turns into exp(i angle).
    ones = torch.cat((torch.ones(1, 1, 4, half), torch.zeros(1, 1, 4, half)), -1)
    found = Rotation(rotary, head_dim, positions)(ones)[0, 0]
    for t, i in np.ndindex(4, half):
        angle = positions[0, t].item() * frequency_of(i, rotary, head_dim)
        assert found[t, i].item() == pytest.approx(math.cos(angle), abs=1e-5)
        assert found[t, half + i].item() == pytest.approx(math.sin(angle), abs=1e-5)


def test_llama3_scaling_has_all_three_parts_at_its_published_sizes():
    """Llama 3.1: head_dim 128, base 500,000: some pairs kept, some blended, some divided."""
    rotary = spec.Rotary(base=500_000.0, scaling=spec.Llama3Scaling(factor=8.0))
    plain = spec.Rotary(base=500_000.0)
    ratios = [frequency_of(i, rotary, 128) / frequency_of(i, plain, 128) for i in range(64)]
    assert ratios[0] == 1.0
    assert ratios[-1] == 1 / 8
    assert any(1 / 8 < ratio < 1 for ratio in ratios)
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize("width", [10, 13])
def test_sinusoids_in_halves(width):
    """All sines, then all cosines (Marian); for an odd width the last cosine is left out."""
    positions = torch.tensor([[0, 1, 2, 97]])
    found = SinusoidalPositions(spec.Sinusoidal(layout="halves"), width)(positions)[0]
    sines = (width + 1) // 2
    for t, i in np.ndindex(4, width):
        angle = positions[0, t].item() / 10_000.0 ** (2 * (i % sines) / width)
        value = math.sin(angle) if i < sines else math.cos(angle)
        assert found[t, i].item() == pytest.approx(value, abs=1e-5)
