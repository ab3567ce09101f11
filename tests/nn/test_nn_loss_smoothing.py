"""Label smoothing of the chunked vocabulary loss, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from trivium.nn import loss as loss_module
from trivium.nn.loss import linear_cross_entropy

LABELS, WIDTH, VOCABULARY = 13, 7, 31


def make(dtype=torch.float32, *, bias=True, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(LABELS, WIDTH), (VOCABULARY, WIDTH), *([(VOCABULARY,)] if bias else [])]
    inputs = [torch.empty(s, dtype=dtype).normal_(0.0, scale, generator=generator) for s in shapes]
    targets = torch.randint(VOCABULARY, (LABELS,), generator=generator)
    return [tensor.requires_grad_() for tensor in inputs], targets


def ours(inputs, targets, smoothing):
    bias = inputs[2] if len(inputs) == 3 else None
    return linear_cross_entropy(inputs[0], inputs[1], bias, targets, smoothing=smoothing)


def by_torch(inputs, targets, smoothing):
    """The definition, in float64: its value and gradients."""
    double = [tensor.detach().double().requires_grad_() for tensor in inputs]
    logits = F.linear(*double)
    loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return loss, *torch.autograd.grad(0.37 * loss, double)


def assert_close(found, wanted, tolerance):
    for mine, other in zip(found, wanted, strict=True):
        error = (mine.double() - other).abs().max() / (other.abs().max() + 1e-12)
        assert error <= tolerance, f"{error:.1e}"


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 5, 13, 100])
def test_value_and_gradients(rows, dtype, bias, smoothing, monkeypatch):
    monkeypatch.setattr(loss_module, "_CPU_CHUNK", rows * VOCABULARY)
    inputs, targets = make(dtype, bias=bias)
    loss = ours(inputs, targets, smoothing)
    found = (loss, *torch.autograd.grad(0.37 * loss, inputs))
    wanted = by_torch(inputs, targets, smoothing)
    assert_close(found, wanted, 3e-6)
    with torch.no_grad():
        assert_close([ours(inputs, targets, smoothing)], wanted[:1], 3e-6)


def test_large_logits_stay_finite():
    inputs, targets = make(scale=100.0)
    loss = ours(inputs, targets, 0.1)
    found = (loss, *torch.autograd.grad(0.37 * loss, inputs))
    assert all(tensor.isfinite().all() for tensor in found)
    assert_close(found, by_torch(inputs, targets, 0.1), 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_and_in_half_precision(dtype):
    inputs, targets = make(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        loss = ours(inputs, targets, 0.1)
        with torch.no_grad():
            without = ours(inputs, targets, 0.1)
    found = (loss, *torch.autograd.grad(0.37 * loss, inputs))
    assert_close(found, by_torch(inputs, targets, 0.1), 0.03)
    assert without.item() == pytest.approx(loss.item(), rel=0.01)


def test_a_padded_vocabulary_shares_the_spread():
    """Rows beyond the tokenizer are entries like others: e is spread over all V."""
    inputs, targets = make()
    targets = targets % (VOCABULARY - 3)
    loss = ours(inputs, targets, 0.2)
    gradient = torch.autograd.grad(loss, inputs[2])[0]
    assert_close([loss], by_torch(inputs, targets, 0.2)[:1], 3e-6)
    shares = F.linear(*inputs).softmax(1)
    padded = (shares - 0.2 / VOCABULARY).sum(0)[-3:]
    torch.testing.assert_close(gradient[-3:], padded)


def test_equal_logits_cost_the_logarithm_of_the_vocabulary_at_any_smoothing():
    weight, features = torch.zeros(VOCABULARY, WIDTH), torch.randn(LABELS, WIDTH)
    for smoothing in (0.0, 0.3):
        loss = linear_cross_entropy(
            features, weight, None, torch.arange(LABELS), smoothing=smoothing
        )
        assert loss.item() == pytest.approx(LABELS * torch.tensor(VOCABULARY).log().item())


def test_a_frozen_matrix_gets_no_gradient_and_the_rest_the_same():
    torch.manual_seed(1)
    features = torch.randn(7, 5, requires_grad=True)
    weight = torch.randn(11, 5)
    targets = torch.randint(0, 11, (7,))
    found = linear_cross_entropy(features, weight, None, targets)
    (gradient,) = torch.autograd.grad(found, features)
    trained = weight.clone().requires_grad_()
    expected = linear_cross_entropy(features, trained, None, targets)
    reference, _ = torch.autograd.grad(expected, (features, trained))
    assert torch.equal(found, expected)
    assert torch.equal(gradient, reference)
