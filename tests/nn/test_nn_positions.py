"""Positions against the papers' formulas and `transformers`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_models import small_part
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from trivium import spec
from trivium.errors import SpecError
from trivium.models.transformer import add_queries
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.positions.alibi import LinearBias, alibi_slopes
from trivium.nn.positions.learned import LearnedPositions
from trivium.nn.positions.relative_bias import RelativePositionBias, relative_buckets
from trivium.nn.positions.rotary import RotaryPositions
from trivium.nn.positions.sinusoidal import SinusoidalPositions
from trivium.nn.sequence_info import SequenceInfo, check_length

pytestmark = pytest.mark.usefixtures("double_precision")


def test_sinusoids_are_the_formula_in_both_layouts():
    positions = torch.tensor([[0, 1, 2, 97], [5, 3, 511, 1]])
    for width in (10, 13):
        for layout in ("interleaved", "halves"):
            described = spec.Sinusoidal(base=37.0, layout=layout)
            vectors = SinusoidalPositions(described, width)(positions)
            sines = (width + 1) // 2
            for row, column, i in np.ndindex(2, 4, width):
                pair, is_cosine = (
                    (i // 2, i % 2) if layout == "interleaved" else (i % sines, i >= sines)
                )
                angle = positions[row, column].item() / 37.0 ** (2 * pair / width)
                expected = math.cos(angle) if is_cosine else math.sin(angle)
                assert vectors[row, column, i].item() == pytest.approx(expected, abs=1e-9)


def attention_with(positions, *, heads=5, head_dim=10):
    return spec.Attention(num_heads=heads, head_dim=head_dim, positions=positions)


def turned_by(rotary, positions, x):
    """The module's rotation of x [B, N, T, H] at positions [B, T]."""
    module = RotaryPositions(attention_with(rotary, head_dim=x.shape[-1]), 7)
    sequence = SequenceInfo(positions, torch.arange(x.shape[2])[None])
    return module.apply_rotary(x, module.prepare(sequence, sequence, None))


def test_rotations_are_products_of_complex_numbers_in_both_layouts():
    x = torch.randn(2, 3, 7, 10, dtype=torch.float64)
    positions = torch.randint(0, 200, (2, 7))
    for layout in ("halves", "interleaved"):
        rotary = spec.Rotary(base=10_000.0, layout=layout)
        turned = turned_by(rotary, positions, x).numpy()
        for row, head, t, i in np.ndindex(2, 3, 7, 5):
            a, b = (i, i + 5) if layout == "halves" else (2 * i, 2 * i + 1)
            angle = positions[row, t].item() * 10_000.0 ** (-2 * i / 10)
            number = complex(x[row, head, t, a], x[row, head, t, b]) * np.exp(1j * angle)
            assert turned[row, head, t, a] == pytest.approx(number.real, abs=1e-9)
            assert turned[row, head, t, b] == pytest.approx(number.imag, abs=1e-9)
    assert turned_by(spec.Rotary(), positions, x.bfloat16()).dtype == torch.bfloat16


def frequency_of(i: int, rotary: spec.Rotary, head_dim: int) -> float:
    """Radians per position of pair i: Chen et al. 2023; Grattafiori et al. 2024."""
    frequency = rotary.base ** (-2.0 * i / head_dim)
    match rotary.scaling:
        case None:
            return frequency
        case spec.LinearScaling(factor=factor):
            return frequency / factor
        case spec.Llama3Scaling() as scaling:
            wavelength = 2 * math.pi / frequency
            if wavelength < scaling.original_max_length / scaling.high_frequency_factor:
                return frequency
            if wavelength > scaling.original_max_length / scaling.low_frequency_factor:
                return frequency / scaling.factor
            smooth = scaling.original_max_length / wavelength - scaling.low_frequency_factor
            smooth /= scaling.high_frequency_factor - scaling.low_frequency_factor
            return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def test_scaled_rotations():
    positions = torch.tensor([[0, 1, 17, 50]])
    ones = torch.cat((torch.ones(1, 1, 4, 32), torch.zeros(1, 1, 4, 32)), -1)
    own = {"low_frequency_factor": 0.5, "high_frequency_factor": 7.0, "original_max_length": 100}
    for scaling in (
        None,
        spec.LinearScaling(factor=4.0),
        spec.Llama3Scaling(factor=8.0),
        spec.Llama3Scaling(factor=3.0, **own),
    ):
        rotary = spec.Rotary(base=500_000.0, scaling=scaling)
        turned = turned_by(rotary, positions, ones)[0, 0]
        for t, i in np.ndindex(4, 32):
            angle = positions[0, t].item() * frequency_of(i, rotary, 64)
            assert turned[t, i].item() == pytest.approx(math.cos(angle), abs=1e-9)
            assert turned[t, 32 + i].item() == pytest.approx(math.sin(angle), abs=1e-9)


def test_relative_buckets_are_those_of_t5():
    for buckets, max_distance in ((32, 128), (8, 20), (64, 512), (4, 3)):
        distance = torch.arange(-2 * max_distance, 2 * max_distance + 1)
        described = spec.RelativeBias(num_buckets=buckets, max_distance=max_distance)
        for bidirectional in (True, False):
            expected = T5Attention._relative_position_bucket(
                distance, bidirectional, buckets, max_distance
            )
            actual = relative_buckets(distance, described, bidirectional=bidirectional)
            assert torch.equal(actual, expected), (buckets, bidirectional)


def test_biases_of_rows_with_different_starts():
    """By columns: positions that begin anew, or count no padding, change no distance."""
    queries = torch.tensor([[0, 1, 2], [4, 5, 6]])
    described = spec.RelativeBias(num_buckets=8, max_distance=20)
    relative = RelativePositionBias(attention_with(described), 7)
    table = relative.new_table()
    torch.nn.init.normal_(table.weight)
    keys = SequenceInfo.of_length(7)
    for causal in (True, False):
        sequence = SequenceInfo(queries % 4, queries, causal=causal)
        bias = relative.bias(relative.prepare(sequence, keys, table))(sequence, keys)
        alibi = LinearBias(attention_with(spec.ALiBi()), 7)
        linear = alibi.bias(alibi.prepare(sequence, keys, None))(sequence, keys)
        assert bias.shape == linear.shape == (2, 5, 3, 7)
        for row, head, t, s in np.ndindex(2, 5, 3, 7):
            distance = s - queries[row, t]
            bucket = relative_buckets(distance, described, bidirectional=not causal)
            assert bias[row, head, t, s] == table.weight[bucket, head]
            expected = -alibi_slopes(5)[head] * distance.abs()
            assert linear[row, head, t, s].item() == pytest.approx(expected.item(), rel=1e-9)
    far = SequenceInfo.of_length(61, causal=True)
    bias = relative.bias(relative.prepare(far, far, table))(far, far)
    distance = far.columns - far.columns.T
    buckets = relative_buckets(distance, described, bidirectional=False)
    assert torch.equal(bias[0], table.weight[buckets].permute(2, 0, 1))
    with pytest.raises(SpecError, match="table"):
        relative.prepare(sequence, keys, None)


def test_alibi_slopes_are_those_of_bloom():
    for heads in (1, 2, 3, 5, 6, 8, 12, 16, 40, 112):
        last = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        torch.testing.assert_close(alibi_slopes(heads), last)


def test_learned_positions_and_their_end():
    learned = LearnedPositions(spec.Learned(max_length=11, offset=2), 7)
    torch.nn.init.normal_(learned.weight)
    assert torch.equal(learned(torch.tensor([[0, 10]]))[0], learned.weight[[2, 12]])
    check_length(512, 512)
    check_length(10**6, None)
    with pytest.raises(SpecError, match=r"513 tokens.*at most 512"):
        check_length(513, 512)


@pytest.mark.parametrize("kind", spec.Positions.kinds.values(), ids=lambda kind: kind.__name__)
@torch.no_grad()
def test_positions_of_an_order_are_those_of_a_plain_pass(kind):
    """What an order shows after a token is as far away as in a pass that sees everything."""
    mixer = AttentionModule(attention_with(small_part(kind), heads=3, head_dim=12), 13)
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    table = mixer.new_table()
    for weight in () if table is None else table.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    order = torch.tensor([[3, 0, 0, 5, 1, 2, 4]])
    sees = order[:, :, None] >= order[:, None, :]
    x = torch.randn(2, 7, 13)
    found, expected = (
        mixer.probabilities(x, sequence, prepared=mixer.prepare(sequence, table=table))
        for sequence in (
            add_queries(SequenceInfo.of_length(7), order, torch.empty(1, 0, dtype=torch.int64)),
            SequenceInfo.of_length(7, custom=sees[0]),
        )
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
