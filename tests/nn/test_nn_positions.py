"""Positions against the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.positions import (
    LearnedPositions,
    Rotation,
    SinusoidalPositions,
    build_positions,
    check_length,
)


@pytest.mark.parametrize("width", [10, 13])
@pytest.mark.parametrize("base", [10_000.0, 37.0])
def test_sinusoidal(width, base):
    positions = torch.tensor([[0, 1, 2, 97], [5, 3, 511, 1]])
    found = SinusoidalPositions(spec.Sinusoidal(base=base), width)(positions)
    assert found.shape == (2, 4, width)
    for row, column in np.ndindex(2, 4):
        place = int(positions[row, column])
        for i in range(width):
            angle = place / base ** (2 * (i // 2) / width)
            value = np.cos(angle) if i % 2 else np.sin(angle)
            assert found[row, column, i].item() == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_rotary_is_a_product_of_complex_numbers(base):
    rows, heads, length, head_dim = 2, 3, 7, 10
    x = torch.randn(rows, heads, length, head_dim, dtype=torch.float64)
    positions = torch.randint(0, 200, (rows, length))
    found = Rotation(spec.Rotary(base=base), head_dim, positions)(x).numpy()
    half = head_dim // 2
    for row, head, t, i in np.ndindex(rows, heads, length, half):
        theta = base ** (-2 * i / head_dim)
        number = complex(x[row, head, t, i], x[row, head, t, i + half])
        turned = number * np.exp(1j * int(positions[row, t]) * theta)
        assert found[row, head, t, i] == pytest.approx(turned.real, abs=1e-4)
        assert found[row, head, t, i + half] == pytest.approx(turned.imag, abs=1e-4)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_rotary_scores_depend_on_distance_alone(query_at, key_at, shift):
    """<R(m) q, R(n) k> = <R(m + s) q, R(n + s) k> (Su et al. 2021, equation 11)."""
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, 1, 1, 14, generator=generator, dtype=torch.float64)

    def score(m, n):
        turn = [Rotation(spec.Rotary(), 14, torch.tensor([[p]])) for p in (m, n)]
        return (turn[0](query) * turn[1](key)).sum().item()

    here, there = score(query_at, key_at), score(query_at + shift, key_at + shift)
    assert here == pytest.approx(there, abs=2e-3)


def test_rotary_keeps_lengths_and_the_precision_it_is_given():
    x = torch.randn(1, 2, 5, 8)
    rotation = Rotation(spec.Rotary(), 8, torch.arange(5)[None])
    torch.testing.assert_close(rotation(x).norm(dim=-1), x.norm(dim=-1))
    assert rotation(x.bfloat16()).dtype == torch.bfloat16


def test_build_positions():
    learned = build_positions(spec.Learned(max_length=11), 7)
    assert isinstance(learned, LearnedPositions)
    assert learned.weight.shape == (11, 7)
    assert learned(torch.tensor([[0, 10], [3, 3]])).shape == (2, 2, 7)
    assert isinstance(build_positions(spec.Sinusoidal(), 7), SinusoidalPositions)
    assert build_positions(None, 7) is None


def test_too_long_an_input_names_both_lengths():
    check_length(512, 512)
    check_length(10**6, None)
    with pytest.raises(SpecError, match=r"513 tokens.*end at 512"):
        check_length(513, 512)
