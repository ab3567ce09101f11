"""Initialisation, saving, and splitting a batch: what must not change a result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small_models import (
    BIDIRECTIONAL,
    BOTH,
    SPECS,
    VOCABULARY,
    inputs_for,
    random_ids,
    small_model,
)
from training import plan, step_batch

from trivium.data import Batch, RowBatch, RowRandom
from trivium.models import build
from trivium.objectives import Causal, Masked
from trivium.train.loop import forward_backward


def same_weights(a, b):
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(n == m and torch.equal(x, y) for (n, x), (m, y) in pairs)


@pytest.mark.parametrize("name", SPECS)
def test_same_seed_same_initialisation(name):
    first = build(SPECS[name], seed=5)
    torch.rand(3)
    second, other = build(SPECS[name], seed=5), build(SPECS[name], seed=6)
    assert same_weights(first, second)
    assert not same_weights(first, other)


@pytest.mark.parametrize("name", SPECS)
def test_saved_and_loaded_weights_are_the_same(name, tmp_path):
    model, ids = small_model(name), random_ids(2, 11)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = build(SPECS[name], seed=9).eval()
    assert not same_weights(model, loaded)
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert same_weights(model, loaded)
    with torch.no_grad():
        inputs = inputs_for(name, ids)
        assert torch.equal(model(**inputs), loaded(**inputs))


def with_sources(batch, lengths):
    """The same answers, asked of an encoder-decoder: sources of many lengths, padded."""
    sources = random_ids(len(lengths), 13, seed=3).numpy()
    real = np.arange(13) < np.array(lengths)[::-1, None]
    return Batch(
        input_ids=sources,
        attention_mask=real.astype(np.int64),
        decoder_input_ids=batch.input_ids,
        labels=batch.labels,
    )


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(2, 13), min_size=2, max_size=9),
    micro_batch=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_splitting_a_batch_changes_nothing(name, lengths, micro_batch, seed):
    """Rows of different lengths: micro-batches with unequal label counts must not weigh alike."""
    rows = RowBatch(random_ids(len(lengths), 13, seed=seed).numpy(), np.array(lengths))
    objective = Masked.for_vocabulary(VOCABULARY, 1, [0, 1]) if name in BIDIRECTIONAL else Causal()
    batch = objective.prepare(rows, RowRandom(seed, np.arange(len(lengths))))
    if name in BOTH:
        batch = with_sources(batch, lengths)
    found = []
    for size in (len(lengths), micro_batch):
        model = small_model(name)
        loss = forward_backward(model, step_batch(objective, batch, size), plan(), 0)
        gradients = {n: w.grad for n, w in model.named_parameters() if w.grad is not None}
        found.append((float(loss.sums), loss.counts[0], gradients))
    (whole, count, gradients), (split, split_count, split_gradients) = found
    assert count == split_count == batch.num_labels
    assert whole == pytest.approx(split, rel=1e-6)
    assert gradients.keys() == split_gradients.keys()
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for weight_name, gradient in gradients.items():
        difference = (gradient - split_gradients[weight_name]).abs().max()
        assert difference <= 5e-6 * largest, weight_name
