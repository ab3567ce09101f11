"""The chunked vocabulary loss against PyTorch's own cross-entropy in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from trivium.nn import loss as loss_module
from trivium.nn.loss import linear_cross_entropy

LABELS, WIDTH, VOCABULARY = 13, 7, 31


def make(labels=LABELS, *, bias=True, scale=1.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.empty(shape, dtype=dtype).normal_(0.0, scale, generator=generator)

    features, weight = normal(labels, WIDTH), normal(VOCABULARY, WIDTH)
    offset = normal(VOCABULARY) if bias else None
    targets = torch.randint(VOCABULARY, (labels,), generator=generator)
    inputs = [t for t in (features, weight, offset) if t is not None]
    return [t.requires_grad_() for t in inputs], targets


def value_and_gradients(loss, inputs, factor=0.37):
    return loss, *torch.autograd.grad(loss * factor, inputs)


def ours(inputs, targets):
    bias = inputs[2] if len(inputs) == 3 else None
    return linear_cross_entropy(inputs[0], inputs[1], bias, targets)


def expected(inputs, targets):
    """The definition, in float64."""
    double = [tensor.detach().double().requires_grad_() for tensor in inputs]
    logits = F.linear(*double)
    return value_and_gradients(F.cross_entropy(logits, targets, reduction="sum"), double)


def assert_close(found, wanted, tolerance):
    for a, b in zip(found, wanted, strict=True):
        scale = b.abs().max().item() + 1e-12
        assert (a.double() - b).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 14, 100])
def test_value_and_gradients_whatever_the_chunk(rows, dtype, bias, monkeypatch):
    monkeypatch.setattr(loss_module, "_CPU_CHUNK", rows * VOCABULARY)
    inputs, targets = make(bias=bias, dtype=dtype)
    found, wanted = value_and_gradients(ours(inputs, targets), inputs), expected(inputs, targets)
    assert_close(found, wanted, 2e-6)
    assert found[0].dtype == torch.float32
    with torch.no_grad():
        assert_close([ours(inputs, targets)], wanted[:1], 2e-6)


@given(labels=st.integers(1, 40), budget=st.integers(1, 40 * VOCABULARY), seed=st.integers(0, 99))
def test_chunks_cover_every_label_once(labels, budget, seed):
    inputs, targets = make(labels, seed=seed)
    before = loss_module._CPU_CHUNK
    loss_module._CPU_CHUNK = budget
    try:
        chunks = loss_module._chunks(inputs[0], inputs[1])
        found = value_and_gradients(ours(inputs, targets), inputs)
    finally:
        loss_module._CPU_CHUNK = before
    assert [i for start, stop in chunks for i in range(start, stop)] == list(range(labels))
    largest = max(stop - start for start, stop in chunks)
    # Equal parts may overshoot the budget by a part of one row.
    assert (largest - 1) * VOCABULARY < budget
    assert_close(found, expected(inputs, targets), 1e-5)


@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_extreme_logits_stay_finite(scale):
    inputs, targets = make(scale=scale)
    found = value_and_gradients(ours(inputs, targets), inputs)
    assert all(tensor.isfinite().all() for tensor in found)
    assert_close(found, expected(inputs, targets), 1e-4)


def test_equal_logits_give_the_logarithm_of_the_vocabulary():
    weight, features = torch.zeros(VOCABULARY, WIDTH), torch.randn(LABELS, WIDTH)
    loss = linear_cross_entropy(features, weight, None, torch.arange(LABELS))
    assert loss.item() == pytest.approx(LABELS * torch.tensor(VOCABULARY).log().item())


def test_no_labels_give_zero_and_zero_gradients():
    inputs, targets = make(0)
    loss, *gradients = value_and_gradients(ours(inputs, targets), inputs)
    assert loss.item() == 0.0
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in inputs]
    assert all(not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("bias", [True, False])
def test_under_autocast(bias):
    inputs, targets = make(bias=bias)
    with torch.autocast("cpu", torch.bfloat16):
        loss = ours(inputs, targets)
        with torch.no_grad():
            without = ours(inputs, targets)
    found = value_and_gradients(loss, inputs)
    assert_close(found, expected(inputs, targets), 0.03)
    assert without.item() == pytest.approx(loss.item(), rel=0.01)
    assert [tensor.dtype for tensor in found] == [torch.float32] * len(found)


def test_bfloat16_weights_sum_in_float32():
    inputs, targets = make(dtype=torch.bfloat16)
    found = value_and_gradients(ours(inputs, targets), inputs)
    assert found[0].dtype == torch.float32
    assert [tensor.dtype for tensor in found[1:]] == [torch.bfloat16] * 3
    assert_close(found, expected(inputs, targets), 0.03)
