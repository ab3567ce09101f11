"""Attention against the papers' formulas, written out in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.nn import attention as attention_module
from trivium.nn.attention import Attention, attend
from trivium.nn.mask import Mask
from trivium.nn.positions import Rotation

ROWS, QUERIES, KEYS, HEAD_DIM, WIDTH = 2, 5, 7, 6, 11
FULL, FREE = spec.Full(), Mask(causal=False)


def softmax(x):
    exponential = np.exp(x - x.max())
    return exponential / exponential.sum()


def attention_of_one_query(query, keys, values, scale):
    """Sum_s softmax(q . k_s * scale) v_s (Vaswani et al. 2017, equation 1)."""
    weights = softmax(np.array([query @ key for key in keys]) * scale)
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def grouped_attention(query, key, value, scale, sees=lambda row, t, s: True):
    """Head n reads key-value head n // (N / K) (Ainslie et al. 2023)."""
    rows, heads, queries, width = query.shape
    mixed = np.empty((rows, heads, queries, width))
    for row, head, t in np.ndindex(rows, heads, queries):
        group = head // (heads // key.shape[1])
        seen = [s for s in range(key.shape[2]) if sees(row, t, s)]
        mixed[row, head, t] = attention_of_one_query(
            query[row, head, t], key[row, group, seen], value[row, group, seen], scale
        )
    return mixed


def random_heads(heads, length):
    return torch.randn(ROWS, heads, length, HEAD_DIM, dtype=torch.float64)


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (8, 1), (9, 1)])
def test_one_query_in_a_compiled_layer(heads, kv_heads, monkeypatch):
    """Whether heads that share keys are few or many."""
    query, key, value = random_heads(heads, 1), *(random_heads(kv_heads, KEYS) for _ in "kv")
    seen = torch.arange(KEYS) < torch.tensor([[3], [KEYS]])
    expected = grouped_attention(
        *(x.numpy() for x in (query, key, value)), 0.3, lambda row, t, s: bool(seen[row, s])
    )
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    mixed = attend(query, key, value, Mask(causal=False, padding=seen), FULL, scale=0.3)
    np.testing.assert_allclose(mixed.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (5, 1)])
@pytest.mark.parametrize("scale", [HEAD_DIM**-0.5, 1.0])
def test_attend_is_the_papers_formula(heads, kv_heads, scale, context):
    query = random_heads(heads, QUERIES)
    key, value = random_heads(kv_heads, KEYS), random_heads(kv_heads, KEYS)
    with context():
        found = attend(query, key, value, FREE, FULL, scale=scale)
    expected = grouped_attention(query.numpy(), key.numpy(), value.numpy(), scale)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_attend_with_causality_window_and_padding(context):
    query, key, value = (random_heads(3, KEYS) for _ in range(3))
    real = torch.arange(KEYS) < torch.tensor([[7], [4]])
    mask, pattern = Mask(causal=True, padding=real), spec.Sliding(window=2)

    def sees(row, t, s):
        return s == t or (t - 2 <= s <= t and bool(real[row, s]))

    with context():
        found = attend(query, key, value, mask, pattern, scale=0.7)
    expected = grouped_attention(query.numpy(), key.numpy(), value.numpy(), 0.7, sees)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
def test_the_module_is_multi_head_attention(bias, rotary):
    """Concat(head_1 ... head_N) W_O, every head with projections of its own (section 3.2.2)."""
    description = spec.Attention(num_heads=6, num_kv_heads=2, head_dim=HEAD_DIM, bias=bias)
    module = Attention(description, WIDTH, 0.0).double()
    x = torch.randn(ROWS, QUERIES, WIDTH, dtype=torch.float64)
    rotation = None
    if rotary:
        rotation = Rotation(spec.Rotary(base=50.0), HEAD_DIM, torch.arange(QUERIES)[None])
    found = module(x, Mask(causal=True), places=rotation).detach().numpy()

    def project(linear, heads):
        projected = x.numpy() @ linear.weight.detach().numpy().T
        if linear.bias is not None:
            projected = projected + linear.bias.detach().numpy()
        return projected.reshape(ROWS, QUERIES, heads, HEAD_DIM).transpose(0, 2, 1, 3)

    query, key, value = (
        project(linear, heads)
        for linear, heads in ((module.query, 6), (module.key, 2), (module.value, 2))
    )
    if rotary:
        query, key = rotate(query, 50.0), rotate(key, 50.0)
    mixed = grouped_attention(query, key, value, HEAD_DIM**-0.5, lambda _, t, s: s <= t)
    joined = mixed.transpose(0, 2, 1, 3).reshape(ROWS, QUERIES, 6 * HEAD_DIM)
    expected = joined @ module.output.weight.detach().numpy().T
    if bias:
        expected = expected + module.output.bias.detach().numpy()
    # Rotary angles are float32 in the module, by design.
    tolerance = 1e-6 if rotary else 1e-12
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("padded", [True, False])
def test_attention_to_a_memory(padded):
    """Queries from x, keys and values from what an encoder read (section 3.2.3)."""
    description = spec.Attention(num_heads=3, head_dim=HEAD_DIM)
    module = Attention(description, WIDTH, 0.0).double()
    x = torch.randn(ROWS, QUERIES, WIDTH, dtype=torch.float64)
    memory = torch.randn(ROWS, KEYS, WIDTH, dtype=torch.float64)
    real = torch.arange(KEYS) < torch.tensor([[7], [4]]) if padded else None
    found = module(x, Mask(causal=False, padding=real), memory=memory).detach().numpy()

    def project(linear, source):
        projected = source.numpy() @ linear.weight.detach().numpy().T
        projected = projected + linear.bias.detach().numpy()
        return projected.reshape(ROWS, -1, 3, HEAD_DIM).transpose(0, 2, 1, 3)

    query = project(module.query, x)
    key, value = project(module.key, memory), project(module.value, memory)

    def sees(row, t, s):
        return real is None or bool(real[row, s])

    mixed = grouped_attention(query, key, value, HEAD_DIM**-0.5, sees)
    joined = mixed.transpose(0, 2, 1, 3).reshape(ROWS, QUERIES, 3 * HEAD_DIM)
    expected = joined @ module.output.weight.detach().numpy().T
    expected = expected + module.output.bias.detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def rotate(x, base):
    """Multiply by exp(i p theta_j) (Su et al. 2021, equation 12)."""
    half = x.shape[-1] // 2
    frequencies = base ** (-2.0 * np.arange(half) / x.shape[-1])
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(
        1j * np.arange(x.shape[-2])[:, None] * frequencies
    )
    return np.concatenate((turned.real, turned.imag), axis=-1)


@pytest.mark.parametrize("kv_heads", [6, 3])
@pytest.mark.parametrize(
    ("mask", "pattern"),
    [
        (Mask(causal=False), spec.Full()),
        (Mask(causal=True), spec.Full()),
        (Mask(causal=True), spec.Sliding(window=3)),
        (Mask(causal=False, padding=torch.arange(17) < torch.tensor([[17], [5]])), spec.Full()),
        (Mask(causal=True, documents=torch.arange(17)[None].expand(2, -1) // 6), spec.Full()),
    ],
    ids=["free", "causal", "sliding", "padding", "documents"],
)
def test_the_explicit_way_equals_the_kernels(mask, pattern, kv_heads, monkeypatch):
    """Values and gradients; the kernel is what runs where scores are too many."""
    shapes = [(2, heads, 17, 8) for heads in (6, kv_heads, kv_heads)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    found = []
    for budget in (2**26, 0):
        monkeypatch.setattr(attention_module, "_EXPLICIT_SCORES", budget)
        mixed = attend(*inputs, mask, pattern, scale=0.3)
        found.append((mixed, *torch.autograd.grad(mixed.square().sum(), inputs)))
    for explicit, kernel in zip(*found, strict=True):
        torch.testing.assert_close(explicit, kernel, rtol=1e-4, atol=1e-5)


def test_dropout_drops_only_while_training():
    module = Attention(spec.Attention(num_heads=3, head_dim=4), 13, 0.5)
    x = torch.randn(2, 7, 13)
    module.eval()
    assert torch.equal(module(x, FREE), module(x, FREE))
    module.train()
    assert not torch.equal(module(x, FREE), module(x, FREE))


def test_the_scale_of_the_spec_is_used():
    description = spec.Attention(num_heads=3, head_dim=4, scale=1.0)
    assert Attention(description, 13, 0.0).scale == 1.0
    assert Attention(description.replace(scale=None), 13, 0.0).scale == 1 / math.sqrt(4)


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2)])
@pytest.mark.parametrize("pattern", [FULL, spec.Sliding(window=2)])
@pytest.mark.parametrize("causal", [True, False])
def test_texts_in_a_row_attend_each_by_itself(causal, pattern, heads, kv_heads):
    lengths = (3, 1, 5)
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    query = torch.randn(1, heads, sum(lengths), HEAD_DIM, dtype=torch.float64)
    key, value = torch.randn(2, 1, kv_heads, sum(lengths), HEAD_DIM, dtype=torch.float64)
    together = Mask(causal, documents=documents)
    with torch.no_grad():
        expected = attend(query, key, value, together, pattern, scale=0.4)
        apart = attend(query, key, value, replace(together, texts=lengths), pattern, scale=0.4)
    torch.testing.assert_close(apart, expected, rtol=1e-12, atol=1e-12)


def test_a_mask_is_made_once_for_all_layers():
    mask = Mask(causal=True, start=(3, 5))
    first = mask.added(FULL, 1, 6, torch.device("cpu"), torch.float32)
    assert mask.added(FULL, 1, 6, torch.device("cpu"), torch.float32) is first
    assert first[:, 0, 0].tolist() == [[0.0] * 4 + [-math.inf] * 2, [0.0] * 6]
    assert mask.added(FULL, 1, 6, torch.device("cpu"), torch.float64).dtype == torch.float64
    assert mask.allowed(FULL, 1, 7, torch.device("cpu")).shape[-1] == 7
