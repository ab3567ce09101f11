"""Initialisation, saving, and splitting a batch: what must not change a result."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small_models import CAUSAL, SPECS, VOCABULARY, random_ids, small_model

from trivium.data import RowBatch, RowRandom
from trivium.models import build
from trivium.objectives import Causal, Masked
from trivium.presets import presets
from trivium.train.loop import Plan, PreparedBatch, forward_backward

SMALL_PRESETS = [name for name in presets if name.endswith("-tiny")]


def same_weights(a, b):
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(n == m and torch.equal(x, y) for (n, x), (m, y) in pairs)


@pytest.mark.parametrize("name", SMALL_PRESETS)
def test_same_seed_same_initialisation(name):
    described = presets[name].replace(vocab_size=97)
    first = build(described, seed=5)
    torch.rand(3)
    second, other = build(described, seed=5), build(described, seed=6)
    assert same_weights(first, second)
    assert not same_weights(first, other)


@pytest.mark.parametrize("name", SMALL_PRESETS)
def test_initialisation_is_as_described(name):
    described = presets[name]
    model, start = build(described), described.initialization
    layers = sum(stack.num_layers for stack in described.stacks)
    branch = {"full": start.std, "scaled": start.std / (2 * layers) ** 0.5, "zero": 0.0}
    for weight_name, weight in model.named_parameters():
        if start.branches == "zero" and weight_name.startswith("heads.mlm.dense"):
            expected = torch.eye(len(weight)) if weight.ndim > 1 else torch.full_like(weight, 3.0)
            assert torch.equal(weight, expected)
        elif weight_name.endswith("bias"):
            assert not weight.any(), weight_name
        elif weight.ndim == 1:
            assert (weight == 1).all(), weight_name
        elif weight_name.endswith(("attention.output.weight", "feed_forward.down.weight")):
            assert weight.std().item() == pytest.approx(branch[start.branches], rel=0.05)
        elif weight.numel() > 10_000:
            std = start.embedding_std if weight_name.startswith("embedding") else start.std
            assert weight.std().item() == pytest.approx(std, rel=0.05), weight_name
            assert abs(weight.mean().item()) < 0.05 * std


@pytest.mark.parametrize("name", SPECS)
def test_saved_and_loaded_weights_are_the_same(name, tmp_path):
    model, ids = small_model(name), random_ids(2, 11)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = build(SPECS[name], seed=9).eval()
    assert not same_weights(model, loaded)
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert same_weights(model, loaded)
    with torch.no_grad():
        assert torch.equal(model(ids), loaded(ids))


def plan(micro_batch):
    return Plan(
        seed=3,
        rows_per_step=8,
        micro_batch=micro_batch,
        precision=torch.float32,
        device=torch.device("cpu"),
        steps=1,
        minutes=None,
        started=time.monotonic(),
        schedule="constant",
        warmup=0,
        decay=0.0,
        final=0.0,
        clip=1.0,
        log_every=1,
        eval_every=1,
        save_every=1,
    )


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(2, 13), min_size=2, max_size=9),
    micro_batch=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_splitting_a_batch_changes_nothing(name, lengths, micro_batch, seed):
    """Rows of different lengths: micro-batches with unequal label counts must not weigh alike."""
    rows = RowBatch(random_ids(len(lengths), 13, seed=seed).numpy(), np.array(lengths))
    objective = Causal() if name in CAUSAL else Masked.for_vocabulary(VOCABULARY, 1, [0, 1])
    batch = objective.prepare(rows, RowRandom(seed, np.arange(len(lengths))))
    prepared, found = PreparedBatch(batch, sum(lengths)), []
    for size in (len(lengths), micro_batch):
        model = small_model(name)
        total, count = forward_backward(model, objective, prepared, plan(size), 0)
        gradients = {n: w.grad for n, w in model.named_parameters() if w.grad is not None}
        found.append((float(total), count, gradients))
    (whole, count, gradients), (split, split_count, split_gradients) = found
    assert count == split_count == batch.num_labels
    assert whole == pytest.approx(split, rel=1e-6)
    assert gradients.keys() == split_gradients.keys()
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for weight_name, gradient in gradients.items():
        difference = (gradient - split_gradients[weight_name]).abs().max()
        assert difference <= 2e-6 * largest, weight_name
