"""Attention against the papers' formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.nn import attention
from trivium.nn.attention import FULL, MultiHeadAttention, attend
from trivium.nn.mask import Mask
from trivium.nn.positions import Rotation

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, QUERIES, KEYS, HEAD_DIM, WIDTH = 2, 5, 7, 6, 11
CONTEXTS = (torch.no_grad, torch.enable_grad)


def grouped_attention(query, key, value, scale, sees=lambda row, t, s: True, bias=None):
    """Sum_s softmax(q . k_s * scale + b) v_s; head n reads key-value head n // (N / K)."""
    mixed = np.empty((*query.shape[:3], value.shape[3]))
    for row, head, t in np.ndindex(*query.shape[:3]):
        group = head // (query.shape[1] // key.shape[1])
        seen = [s for s in range(key.shape[2]) if sees(row, t, s)]
        scores = query[row, head, t] @ key[row, group, seen].T * scale
        if bias is not None:
            scores = scores + bias[row % len(bias), head, t, seen]
        weights = np.exp(scores - max(scores, default=0.0))
        mixed[row, head, t] = weights / (weights.sum() or 1.0) @ value[row, group, seen]
    return mixed


def heads_of(count, length):
    return torch.randn(ROWS, count, length, HEAD_DIM, dtype=torch.float64)


def assert_equal(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=tolerance, atol=tolerance)


def test_attend_is_the_formula_for_all_heads_lengths_and_biases():
    for heads, kv_heads in ((3, 3), (6, 2), (5, 1)):
        for queries in (QUERIES, 1):
            query = heads_of(heads, queries)
            key, value = heads_of(kv_heads, KEYS), heads_of(kv_heads, KEYS)
            bias = torch.randn(1, heads, queries, KEYS, dtype=torch.float64)
            for context in CONTEXTS:
                with context():
                    for added in (None, bias):
                        mixed = attend(query, key, value, Mask(), scale=0.7, position_bias=added)
                        arrays = (x.numpy() for x in (query, key, value))
                        extra = None if added is None else added.numpy()
                        assert_equal(mixed, grouped_attention(*arrays, 0.7, bias=extra))


def test_attend_with_every_limit_at_once():
    """Some queries may attend to nothing, their own position included: their output is 0."""
    real = torch.arange(KEYS) < torch.tensor([[7], [4]])
    documents = torch.arange(KEYS)[None].expand(ROWS, -1) // 4
    custom = torch.rand(ROWS, 1, KEYS, KEYS) < 0.7
    mask = Mask(causal=True, padding=real, documents=documents, custom=custom)

    def sees(row, t, s):
        near = t - 2 <= s <= t and t // 4 == s // 4
        return near and bool(real[row, s]) and bool(custom[row, 0, t, s])

    for heads, kv_heads in ((3, 3), (6, 2)):
        query = heads_of(heads, KEYS)
        key, value = heads_of(kv_heads, KEYS), heads_of(kv_heads, KEYS)
        expected = grouped_attention(*(x.numpy() for x in (query, key, value)), 0.7, sees)
        for context in CONTEXTS:
            with context():
                mixed = attend(query, key, value, mask, spec.Sliding(window=2), scale=0.7)
            assert_equal(mixed, expected)


def test_eager_attention_and_the_kernel_have_equal_gradients():
    documents = torch.arange(17)[None].expand(2, -1) // 6
    masks = [
        (Mask(), FULL),
        (Mask(causal=True), FULL),
        (Mask(causal=True), spec.Sliding(window=3)),
        (Mask(causal=True, documents=documents), FULL),
    ]
    for mask, pattern in masks:
        for kv_heads in (6, 3):
            shapes = [(2, heads, 17, 8) for heads in (6, kv_heads, kv_heads)]
            inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
            results = []
            for limit in (2**26, 0):
                mixed = attend(*inputs, mask, pattern, scale=0.3, max_scores=limit)
                results.append((mixed, *torch.autograd.grad(mixed.square().sum(), inputs)))
            for eager, kernel in zip(*results, strict=True):
                torch.testing.assert_close(eager, kernel, rtol=1e-9, atol=1e-9)


def linear(layer, x, heads):
    y = x.numpy() @ layer.weight.detach().numpy().T
    if layer.bias is not None:
        y = y + layer.bias.detach().numpy()
    return y.reshape(ROWS, -1, heads, HEAD_DIM).transpose(0, 2, 1, 3)


def rotated(x, base):
    """Multiply pairs of the two halves by exp(i p theta_j) (Su et al. 2021, equation 12)."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[-2])[:, None] * base ** (-2.0 * np.arange(half) / x.shape[-1])
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate((turned.real, turned.imag), axis=-1)


def test_the_module_is_multi_head_attention():
    """Concat(head_1 ... head_N) W_O with grouped keys and rotations, and cross-attention."""
    described = spec.Attention(num_heads=6, num_kv_heads=2, head_dim=HEAD_DIM, scale=0.7)
    module = MultiHeadAttention(described, WIDTH).double()
    x = torch.randn(ROWS, QUERIES, WIDTH, dtype=torch.float64)
    memory = torch.randn(ROWS, KEYS, WIDTH, dtype=torch.float64)
    rope = Rotation(spec.Rotary(base=50.0), HEAD_DIM, torch.arange(QUERIES)[None])

    def output(mixed):
        joined = mixed.transpose(0, 2, 1, 3).reshape(ROWS, QUERIES, 6 * HEAD_DIM)
        return (
            joined @ module.output.weight.detach().numpy().T + module.output.bias.detach().numpy()
        )

    query, key = rotated(linear(module.query, x, 6), 50.0), rotated(linear(module.key, x, 2), 50.0)
    value = linear(module.value, x, 2)
    mixed = grouped_attention(query, key, value, 0.7, lambda _, t, s: s <= t)
    # Rotary angles are float32, by design.
    assert_equal(module(x, Mask(causal=True), rope=rope), output(mixed), 1e-6)
    mixed = grouped_attention(
        linear(module.query, x, 6),
        linear(module.key, memory, 2),
        linear(module.value, memory, 2),
        0.7,
    )
    assert_equal(module(x, Mask(), key_value=module.project(memory)), output(mixed))


def test_dropout_only_while_training():
    module = MultiHeadAttention(spec.Attention(num_heads=3, head_dim=4), 13, 0.5)
    x = torch.randn(2, 7, 13)
    assert not torch.equal(module(x, Mask()), module(x, Mask()))
    module.eval()
    assert torch.equal(module(x, Mask()), module(x, Mask()))


def test_without_gradients_masks_are_made_for_some_queries_at_a_time(monkeypatch):
    query, key, value = heads_of(6, KEYS), heads_of(2, KEYS), heads_of(2, KEYS)
    bias = torch.randn(1, 6, KEYS, KEYS, dtype=torch.float64)
    real = torch.arange(KEYS) < torch.tensor([[7], [4]])
    documents = torch.arange(KEYS)[None].expand(ROWS, -1) // 4
    largest = []
    made = Mask._tensor

    def counted(mask, pattern, queries, keys, device):
        largest.append(queries * keys)
        return made(mask, pattern, queries, keys, device)

    monkeypatch.setattr(Mask, "_tensor", counted)
    for mask, pattern, added in (
        (Mask(padding=real), spec.Sliding(window=2), None),
        (Mask(padding=real, causal=True), FULL, bias),
        (Mask(documents=documents, causal=True), FULL, None),
        (Mask(custom=torch.rand(ROWS, 1, KEYS, KEYS) < 0.8, causal=True, padding=real), FULL, None),
        (Mask(custom=torch.rand(1, 6, 1, KEYS) < 0.8), FULL, bias),
        (Mask(causal=True, prefix=torch.tensor([3, 1])), FULL, None),
    ):
        with torch.no_grad():
            whole = attend(query, key, value, mask, pattern, position_bias=added)
            largest.clear()
            with monkeypatch.context() as patch:
                patch.setattr(attention, "_MAX_MASK", 2 * KEYS + 1)
                parts = attend(query, key, value, mask, pattern, position_bias=added)
        assert max(largest) <= 2 * KEYS
        np.testing.assert_array_equal(np.isnan(parts.numpy()), np.isnan(whole.numpy()))
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12, equal_nan=True)
