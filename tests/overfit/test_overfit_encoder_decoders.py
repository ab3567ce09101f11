"""Encoder-decoders learn one batch by heart, with either of their objectives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_overfit import LENGTH, ROWS
from training import plan, step_batch

from trivium.data import NO_LOSS, RowBatch, RowRandom
from trivium.models import build
from trivium.objectives import Denoising, SpanCorruption
from trivium.optim.optimizers import adamw
from trivium.presets import presets
from trivium.train.loop import forward_backward

VOCABULARY, STEPS = 53, 200
SPANS = SpanCorruption(sentinels=np.arange(5) + 43, start_id=0, end_id=1, pad_id=0, probability=0.4)
DAMAGE = Denoising(mask_id=43, start_id=1, end_id=1, pad_id=0, sentence_ends=np.arange(53) % 5 == 0)


@pytest.mark.parametrize(
    ("name", "objective"),
    [("t5-tiny", SPANS), ("t5-v1.1-tiny", SPANS), ("bart-tiny", DAMAGE), ("marian-tiny", SPANS)],
)
def test_one_batch_is_learnt_by_heart(name, objective):
    described = presets[name].replace(vocab_size=VOCABULARY).with_dropout(0.0)
    model = build(described)
    # No token twice in a row: relative positions alone tell repetitions apart, and slowly.
    chance = np.random.default_rng(1)
    ids = np.stack([chance.permutation(np.arange(2, 43))[:LENGTH] for _ in range(ROWS)])
    rows = RowBatch(ids, np.full(ROWS, LENGTH))
    batch = objective.prepare(rows, RowRandom(0, np.arange(ROWS)))
    (optimizer,) = adamw(model, lr=2e-3)
    losses = []
    for step in range(STEPS):
        loss = forward_backward(model, step_batch(objective, batch, 3), plan(), step)
        losses.append(float(loss.sums) / loss.counts[0])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if losses[-1] < 0.02:
            break
    assert losses[-1] < 0.05, losses[::10]
    inputs = {key: torch.from_numpy(array) for key, array in batch.arrays().items()}
    labels = inputs.pop("labels")
    best = model.eval().logits(model(**inputs)).argmax(-1)
    assert (best == labels)[labels != NO_LOSS].float().mean() == 1.0
