"""Every objective learns one batch by heart, with either optimizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import random_ids
from training import plan, step_batch

from trivium import spec
from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.models import build
from trivium.objectives import Causal, Masked
from trivium.optim.optimizers import adamw, muon
from trivium.presets import presets
from trivium.train.loop import forward_backward

VOCABULARY, ROWS, LENGTH, STEPS = 43, 5, 19, 120


def small(name):
    """A tiny preset with a small vocabulary and no dropout."""
    described = presets[name].replace(vocab_size=VOCABULARY)
    slot = "encoder" if described.encoder else "decoder"
    stack = getattr(described, slot)
    assert isinstance(stack, spec.Stack)
    return described.replace(**{slot: stack.replace(dropout=0.0)})


def make_batch(objective):
    ids = random_ids(ROWS, LENGTH, seed=1).numpy()
    # Rows that begin alike cannot be told apart by what comes before.
    ids[:, 0] = np.arange(ROWS) + 2
    rows = RowBatch(ids, np.full(ROWS, LENGTH))
    return objective.prepare(rows, RowRandom(0, np.arange(ROWS)))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["bert-tiny", "modernbert-tiny", "gpt2-tiny", "llama-tiny"])
def test_one_batch_is_learnt_by_heart(name, kind):
    described = small(name)
    model = build(described)
    if described.encoder:
        objective = Masked.for_vocabulary(VOCABULARY, 1, [0, 1], probability=0.3)
    else:
        objective = Causal()
    batch = make_batch(objective)
    prepared = step_batch(objective, batch, 3)
    if kind == "adamw":
        optimizers = adamw(model, lr=2e-3)
    else:
        matrices = [n for n, w in model.named_parameters() if ".layers." in n and w.ndim == 2]
        optimizers = muon(model, matrices, lr=2e-3, matrix_lr=0.02)
    losses = []
    for step in range(STEPS):
        loss = forward_backward(model, prepared, plan(), step)
        losses.append(float(loss.sums) / loss.counts[0])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if losses[-1] < 0.05:
            break
    assert losses[0] == pytest.approx(np.log(VOCABULARY), rel=0.2)
    assert losses[-1] < 0.05, losses[::10]
    assert predictions(model, batch) == 1.0


@torch.no_grad()
def predictions(model, batch: Batch) -> float:
    """Share of the labels that the model puts first."""
    assert batch.labels is not None
    labels = torch.from_numpy(batch.labels)
    best = model.eval().logits(model(torch.from_numpy(batch.input_ids))).argmax(-1)
    labelled = labels != NO_LOSS
    return (best == labels)[labelled].float().mean().item()
