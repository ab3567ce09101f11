"""Every sequence model before the Transformer learns one batch by heart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium.data import RowBatch, RowRandom
from trivium.models import build
from trivium.objectives import Bidirectional, Causal, Masked, to_device
from trivium.optim.optimizers import adamw
from trivium.presets import presets

VOCABULARY, ROWS, LENGTH, STEPS = 43, 5, 19, 100


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("ngram-tiny", Causal()),
        ("rnn-tiny", Causal()),
        ("lstm-tiny", Causal()),
        ("gru-tiny", Causal()),
        ("elmo-tiny", Bidirectional()),
        ("bilstm-tiny", Masked.for_vocabulary(VOCABULARY, 1, [0, 1], probability=0.3)),
        ("birnn-tiny", Masked.for_vocabulary(VOCABULARY, 1, [0, 1], probability=0.3)),
    ],
)
def test_one_batch_is_learnt_by_heart(name, objective):
    described = presets[name].replace(vocab_size=VOCABULARY)
    model = build(described)
    ids = np.random.default_rng(1).integers(2, VOCABULARY, (ROWS, LENGTH))
    # Rows that begin, or end, alike cannot be told apart there.
    ids[:, 0] = ids[:, -1] = np.arange(ROWS) + 2
    rows = RowBatch(ids, np.full(ROWS, LENGTH))
    batch = objective.prepare(rows, RowRandom(0, np.arange(ROWS)))
    tensors = to_device(batch, torch.device("cpu"))
    (optimizer,) = adamw(model, lr=3e-3)
    losses = []
    for _ in range(STEPS):
        loss = objective.loss(model, tensors)
        mean = loss.sum / loss.count
        mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean.item())
    assert losses[0] > 3.0
    assert losses[-1] < 0.3, losses[::20]
