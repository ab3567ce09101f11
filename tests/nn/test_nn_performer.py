"""Performer against the paper's formulas in float64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.mixers.performer import (
    CHUNK,
    Performer,
    PerformerModule,
    orthogonal_features,
    positive_features,
)
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import CacheSlice

pytestmark = pytest.mark.usefixtures("double_precision")

WIDTH, HEADS = 11, 3


def performer(**changes):
    part = Performer(num_heads=HEADS, head_dim=5, num_features=13).replace(**changes)
    mixer = PerformerModule(part, WIDTH)
    mixer.reset_parameters(torch.Generator().manual_seed(0))
    return mixer


def test_features_are_normal_and_orthogonal_and_estimate_softmax_without_bias():
    w = orthogonal_features(40_000, 5, torch.Generator().manual_seed(0))
    gram = (w.unflatten(0, (-1, 5)) @ w.unflatten(0, (-1, 5)).mT).numpy()
    assert np.abs(gram * (1 - np.eye(5))).max() < 1e-12
    np.testing.assert_allclose(np.cov(w.numpy().T), np.eye(5), atol=0.03)
    assert (w**4).mean().item() == pytest.approx(3.0, rel=0.03)  # a normal's
    x, y = 0.3 * torch.randn(2, 7, 5)
    (fx, lx), (fy, ly) = positive_features(x, w, 0.0), positive_features(y, w, 0.0)
    estimate = (fx @ fy.mT / len(w) * (lx + ly.mT).exp()).numpy()
    # Choromanski et al. 2021, lemma 2: the relative standard deviation of the estimate.
    deviation = (((x[:, None] + y) ** 2).sum(-1).expm1() / len(w)).sqrt().numpy()
    error = np.abs(estimate / np.exp(x.numpy() @ y.numpy().T) - 1)
    np.testing.assert_array_less(error, 5 * deviation)


def by_the_formula(mixer, x, real, causal):
    """One row, all weights [T, T] at once."""
    rows = [getattr(mixer, name)(x).detach().numpy() for name in ("query", "key", "value")]
    w, heads = mixer.features.numpy(), []
    for q, k, v in zip(*(np.split(each, HEADS, 1) for each in rows)):
        phi = []
        for z in (q / 5**0.25, k / 5**0.25):
            exact = np.exp(z @ w.T - (z**2).sum(1, keepdims=True) / 2)
            phi.append(exact + mixer.part.eps * exact.max(1, keepdims=True))
        weights = phi[0] @ phi[1].T * real[None]
        weights = np.tril(weights) if causal else weights
        total = weights.sum(1, keepdims=True)
        heads.append(np.divide(weights @ v, total, out=np.zeros_like(v), where=total > 0))
    return mixer.output(torch.from_numpy(np.concatenate(heads, 1))).detach().numpy()


def test_both_forms_are_the_formula_whatever_the_padding_and_the_size_of_keys():
    length, mixer = 2 * CHUNK + 5, performer()
    real = torch.ones(3, length, dtype=torch.bool)
    real[1, CHUNK - 2 :] = real[2, : CHUNK + 3] = False  # padding after a text, and before one
    for size in (1.0, 8.0):
        x = size * torch.randn(3, length, WIDTH)
        for causal in (True, False):
            y = (
                mixer(x, SequenceInfo.of_length(length, causal=causal, is_token=real))
                .detach()
                .numpy()
            )
            for row in range(3):
                expected = by_the_formula(mixer, x[row], real[row].numpy(), causal)
                np.testing.assert_allclose(y[row], expected, rtol=1e-9, atol=1e-9)


def test_features_are_redrawn_in_training_alone_from_the_seed_of_the_pass():
    mixer, x = performer(redraw=True), torch.randn(2, 7, WIDTH)
    sequence = SequenceInfo.of_length(7, causal=True)

    def passed(seed):
        torch.manual_seed(seed)
        return mixer(x, sequence)

    y = passed(1)
    assert torch.equal(y, passed(1))
    assert not torch.allclose(y, passed(2))
    torch.manual_seed(1)
    mixer.features.copy_(orthogonal_features(13, 5))
    torch.testing.assert_close(mixer.eval()(x, sequence), y)
    assert torch.equal(passed(1), passed(2))


def test_more_features_are_nearer_to_softmax_attention():
    attention = AttentionModule(spec.Attention(num_heads=HEADS, head_dim=5), WIDTH)
    x, sequence = torch.randn(4, 17, WIDTH), SequenceInfo.of_length(17, causal=True)
    errors = []
    for count in (10, 100, 1000, 10_000):
        mixer = performer(num_features=count, eps=1e-9)
        mixer.load_state_dict({**attention.state_dict(), "features": mixer.features})
        errors.append((mixer(x, sequence) - attention(x, sequence)).abs().mean().item())
    for fewer, more in pairwise(errors):
        assert more < 0.6 * fewer  # expected: 10^-0.5
    assert errors[-1] < 0.02


def test_features_far_apart_are_finite_and_the_same_in_steps():
    """Of keys so large that no feature is above 0, those of the first chunk smaller."""
    length, mixer = CHUNK + 9, performer()
    x = 200.0 * torch.randn(2, length, WIDTH)
    x[:, CHUNK:] *= 2.0
    exact = positive_features(
        5**-0.25 * mixer.key(x).unflatten(-1, (HEADS, 5)), mixer.features, 0.0
    )
    assert (exact[1] < -745.0).float().mean() > 0.5  # exp is 0
    for causal in (True, False):
        mixer.zero_grad()
        y = mixer(x, SequenceInfo.of_length(length, causal=causal))
        y.square().sum().backward()
        assert all(w.grad is not None and w.grad.isfinite().all() for w in mixer.parameters())
    state = mixer.new_state(2, length, x)
    for start, part in zip((0, 1, CHUNK), x.split([1, CHUNK - 1, 9], 1)):
        size = part.shape[1]
        columns = start + torch.arange(size)[None]
        cache_slice = CacheSlice(slice(2), start, size, None, start + size)
        steps = mixer(
            part, SequenceInfo(columns, columns, causal=True, cache_slice=cache_slice), state
        )
        whole = mixer(x, SequenceInfo.of_length(length, causal=True))[:, start : start + size]
        torch.testing.assert_close(steps, whole, rtol=1e-9, atol=1e-9)


def test_limits_that_sums_cannot_keep_are_refused():
    for limits in (
        SequenceInfo.of_length(7, causal=True, prefix=torch.tensor([2])),
        SequenceInfo.of_length(7, causal=True, documents=torch.ones(1, 7)),
    ):
        with pytest.raises(SpecError, match="performer cannot keep tokens from each other by"):
            performer()(torch.randn(1, 7, WIDTH), limits)
