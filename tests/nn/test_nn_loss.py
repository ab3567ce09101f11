"""The chunked vocabulary loss against PyTorch's cross-entropy in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

from trivium.nn import loss as loss_module
from trivium.nn.loss import cross_entropy, linear_cross_entropy

pytestmark = pytest.mark.usefixtures("double_precision")

WIDTH, VOCABULARY = 7, 31


def make(labels=13, *, bias=True, scale=1.0):
    shapes = [(labels, WIDTH), (VOCABULARY, WIDTH), *([(VOCABULARY,)] if bias else [])]
    inputs = [(torch.randn(s) * scale).requires_grad_() for s in shapes]
    return inputs, torch.randint(VOCABULARY, (labels,))


def chunked(inputs, targets, smoothing=0.0, cap=None):
    bias = inputs[2] if len(inputs) == 3 else None
    return linear_cross_entropy(
        inputs[0], inputs[1], bias, targets, smoothing=smoothing, soft_cap=cap
    )


def with_gradients(loss, inputs):
    return [loss, *torch.autograd.grad(0.37 * loss, inputs)]


def expected(inputs, targets, smoothing=0.0, cap=None):
    double = [tensor.detach().double().requires_grad_() for tensor in inputs]
    logits = F.linear(*double)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return with_gradients(loss, double)


def assert_close(actual, wanted, tolerance):
    for a, b in zip(actual, wanted, strict=True):
        error = (a.double() - b).abs().max() / (b.abs().max() + 1e-12)
        assert error <= tolerance, f"{error:.1e}"


def test_value_and_gradients_for_every_chunk_size(monkeypatch):
    sizes = (1, 2, 5, 12, 13, 14, 100)
    choices = sizes, (0.0, 0.1, 1.0), (True, False), (None, 1.3)
    for rows, smoothing, bias, cap in itertools.product(*choices):
        monkeypatch.setattr(loss_module, "_CPU_CHUNK", rows * VOCABULARY)
        inputs, targets = make(bias=bias)
        wanted = expected(inputs, targets, smoothing, cap)
        loss = chunked(inputs, targets, smoothing, cap)
        assert_close(with_gradients(loss, inputs), wanted, 1e-11)
        with torch.no_grad():
            assert_close([chunked(inputs, targets, smoothing, cap)], wanted[:1], 1e-11)


def test_features_after_the_last_target_count_for_nothing(monkeypatch):
    for rows, cap in itertools.product((1, 5, 13, 16, 100), (None, 1.3)):
        monkeypatch.setattr(loss_module, "_CPU_CHUNK", rows * VOCABULARY)
        inputs, targets = make(20)
        few = targets[:13]
        loss, d_features, *others = with_gradients(chunked(inputs, few, 0.1, cap), inputs)
        assert not d_features[13:].any()
        wanted = expected([inputs[0][:13], *inputs[1:]], few, 0.1, cap)
        assert_close([loss, d_features[:13], *others], wanted, 1e-11)
        with torch.no_grad():
            assert_close([chunked(inputs, few, 0.1, cap)], wanted[:1], 1e-11)


def test_extreme_logits_stay_finite():
    for scale in (30.0, 1000.0):
        inputs, targets = make(scale=scale)
        actual = with_gradients(chunked(inputs, targets), inputs)
        assert all(tensor.isfinite().all() for tensor in actual)
        assert_close(actual, expected(inputs, targets), 1e-9)


def test_no_labels_give_zero():
    inputs, targets = make(0)
    loss, *gradients = with_gradients(chunked(inputs, targets), inputs)
    assert loss.item() == 0.0
    assert all(not gradient.any() for gradient in gradients)


def test_a_frozen_matrix_gets_no_gradient_and_the_rest_the_same():
    (features, weight), targets = make(bias=False)
    trained, _ = torch.autograd.grad(chunked([features, weight], targets), (features, weight))
    (frozen,) = torch.autograd.grad(chunked([features, weight.detach()], targets), features)
    torch.testing.assert_close(frozen, trained, rtol=1e-12, atol=1e-12)


def test_the_loss_of_logits_counts_labels():
    logits, targets = torch.randn(3, 5, VOCABULARY), torch.randint(VOCABULARY, (3, 5))
    targets[1, 2:] = -100
    loss = cross_entropy(logits, targets, smoothing=0.1)
    kept = targets != -100
    log_p = logits.double().log_softmax(-1)[kept]
    expected = -0.9 * log_p.gather(1, targets[kept][:, None]).sum() - 0.1 * log_p.mean(1).sum()
    assert int(loss.count) == int(kept.sum()) == 12
    assert abs(loss.sum.item() - expected.item()) <= 1e-12 * expected.item()
    assert loss.mean.item() == pytest.approx(expected.item() / 12, rel=1e-12)
