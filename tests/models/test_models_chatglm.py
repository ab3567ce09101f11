"""ChatGLM-6B against a transcription of its formulas in float64, and what changes its size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from double import double_precision
from small_models import random_model

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.positions.two_dimensional_rotary import TwoDimensionalRotaryPositions
from trivium.nn.sequence_info import SequenceInfo
from trivium.presets import presets
from trivium.train.recipe import ModelConfig

# Part A has 5 tokens, the last one is a mask. Part B has a start token and 4 generated tokens.
GIVEN, LENGTH = 5, 10
POSITIONS = torch.tensor([[(i, 0) if i < GIVEN else (GIVEN - 1, i - GIVEN + 1) for i in range(10)]])


def chatglm(num_layers: int = 3) -> spec.TransformerSpec:
    config = ModelConfig(
        preset="chatglm-tiny",
        d_model=24,
        decoder={"num_layers": num_layers, "layers": {"mixer": {"num_heads": 2}}},
    )
    return config.build_spec().replace(vocab_size=43)


def norm(x: np.ndarray, weights: dict[str, np.ndarray], name: str, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def rotated(head: np.ndarray, ids: tuple[int, int]) -> np.ndarray:
    """A query or key of one head: both halves as complex numbers, each with its own position id."""
    halves = []
    for half, position in zip(np.split(head, 2), ids, strict=True):
        real, imaginary = np.split(half, 2)
        angles = position / 10_000.0 ** (np.arange(len(real)) / len(real))
        turned = (real + 1j * imaginary) * np.exp(1j * angles)
        halves += [turned.real, turned.imag]
    return np.concatenate(halves)


def transcribed(
    weights: dict[str, np.ndarray], ids: list[int], positions: list[tuple[int, int]], layers: int
) -> np.ndarray:
    """Logits [T, V] as the released code computes them: norm, sublayer, alpha times the normed."""
    alpha, eps, heads = math.sqrt(2 * layers), 1e-5, 2
    # Here the norm before a sublayer belongs to the sublayer before it.
    names = ["decoder.embedding.norm"]
    for layer in range(layers):
        names += [
            f"decoder.layers.{layer}.{sublayer}_residual.post_norm"
            for sublayer in ("mixer", "feed_forward")
        ]
    x = weights["tokens.weight"][ids]
    for layer in range(layers):
        name = f"decoder.layers.{layer}"
        x = norm(x, weights, names[2 * layer], eps)
        query, key, value = (
            linear(x, weights, f"{name}.mixer.{part}").reshape(len(ids), heads, -1)
            for part in ("query", "key", "value")
        )
        mixed = np.zeros_like(query)
        for head in range(heads):
            turned = [
                np.stack([rotated(each[t, head], positions[t]) for t in range(len(ids))])
                for each in (query, key)
            ]
            scores = turned[0] @ turned[1].T / math.sqrt(query.shape[-1])
            for t in range(len(ids)):
                seen = max(GIVEN, t + 1)
                chances = np.exp(scores[t, :seen] - scores[t, :seen].max())
                mixed[t, head] = chances / chances.sum() @ value[:seen, head]
        x = alpha * x + linear(mixed.reshape(len(ids), -1), weights, f"{name}.mixer.output")
        x = norm(x, weights, names[2 * layer + 1], eps)
        up = linear(x, weights, f"{name}.feed_forward.up")
        gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = alpha * x + linear(gelu, weights, f"{name}.feed_forward.down")
    return norm(x, weights, names[-1], eps) @ weights["tokens.weight"].T


@double_precision()
def test_the_released_formulas_of_the_first_generation():
    """Prefix attention, two position ids in one head, and residual connections with sqrt(2 L)."""
    model = random_model(chatglm())
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    ids = torch.randint(0, 43, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    given = torch.tensor([GIVEN])
    with torch.no_grad():
        hidden = model(ids, position_ids=POSITIONS, prefix_lengths=given)
        ours = model.logits(hidden)[0].numpy()
    pairs = [(a, b) for a, b in POSITIONS[0].tolist()]
    theirs = transcribed(weights, ids[0].tolist(), pairs, layers=3)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max())
    # The cache: part A at once, then one token at a time.
    cache = model.new_cache(1, LENGTH)
    with torch.no_grad():
        model(ids[:, :GIVEN], position_ids=POSITIONS[:, :GIVEN], prefix_lengths=given, cache=cache)
        for t in range(GIVEN, LENGTH):
            new = slice(t, t + 1)
            one = model(ids[:, new], position_ids=POSITIONS[:, new], cache=cache)
            np.testing.assert_allclose(model.logits(one)[0, 0], ours[t], rtol=1e-9, atol=1e-9)


@double_precision()
def test_scores_depend_on_both_differences_of_position_ids():
    """Both ids may move by any distance, each by its own: the products of rotated pairs stay."""
    attention = spec.Attention(num_heads=1, head_dim=8, positions=spec.TwoDimensionalRotary())
    module = TwoDimensionalRotaryPositions(attention, 8)
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind(0)

    def score(of_query: tuple[int, int], of_key: tuple[int, int]) -> float:
        turned = []
        for vector, ids in ((query, of_query), (key, of_key)):
            sequence = SequenceInfo(torch.tensor([[ids]]), torch.zeros(1, 1, dtype=torch.int64))
            prepared = module.prepare(sequence, sequence, None)
            turned.append(module.apply_rotary(vector, prepared))
        return float((turned[0] * turned[1]).sum())

    expected = score((9, 5), (4, 2))
    assert score((9 + 11, 5 + 3), (4 + 11, 2 + 3)) == pytest.approx(expected, abs=1e-5)
    assert abs(score((9 + 11, 5), (4, 2)) - expected) > 1e-3
    assert abs(score((9, 5 + 3), (4, 2)) - expected) > 1e-3


def test_a_head_has_pairs_in_both_halves():
    with pytest.raises(SpecError, match="head_dim=10: two-dimensional rotary positions need"):
        spec.Attention(num_heads=3, head_dim=10, positions=spec.TwoDimensionalRotary())


def test_residual_connections_follow_the_number_of_layers():
    for num_layers in (1, 2, 7, 28):
        layer = chatglm(num_layers).decoder.layers[0]
        assert layer.residual_multiplier == (2 * num_layers) ** -0.5
        assert layer.norm.eps * 2 * num_layers == pytest.approx(1e-5, rel=1e-12)
    same = presets["gpt2-tiny"]
    config = ModelConfig(preset="gpt2-tiny", decoder={"num_layers": 5})
    assert config.build_spec().decoder.layers == same.decoder.layers
