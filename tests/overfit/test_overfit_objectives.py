"""The later objectives learn one batch by heart too, every term of their losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training import plan, step_batch

from trivium.data import RowBatch, RowRandom, Rows
from trivium.models import build
from trivium.models.replaced import build_with_generator
from trivium.objectives import (
    Causal,
    Denoising,
    Masked,
    PrefixLM,
    PrefixPairs,
    ReplacedToken,
    SentencePairs,
)
from trivium.objectives.masked import harmonic_lengths
from trivium.optim.optimizers import adamw
from trivium.presets import presets
from trivium.train.loop import forward_backward

VOCABULARY, ROWS, LENGTH, STEPS = 53, 5, 19, 200
PAD, END, CLS, SEP, MASK = 0, 1, 2, 3, 43


class Documents:
    """A split of documents of one row each; what `Rows` asks of it."""

    name, prefix_ids, suffix_ids = "train", (CLS,), (SEP,)
    num_tokens, num_documents = ROWS * LENGTH, ROWS

    def __init__(self, ids: np.ndarray) -> None:
        self.ids = ids

    def tokens_at(self, positions):
        return self.ids.ravel()[positions]

    def documents_at(self, positions):
        return positions // LENGTH


def texts() -> np.ndarray:
    """Rows without a token twice, each with a beginning of its own."""
    chance = np.random.default_rng(1)
    ids = np.stack([chance.permutation(np.arange(4, 43))[:LENGTH] for _ in range(ROWS)])
    ids[:, 0] = np.arange(ROWS) + 4
    return ids


def masked(**changes) -> Masked:
    specials = (PAD, END, CLS, SEP, MASK)
    return Masked.for_vocabulary(VOCABULARY, MASK, specials, **{"probability": 0.3, **changes})


def losses_of(model, objective, batch, steps=STEPS) -> list[list[float]]:
    """Mean losses of every step, term by term, until all are small."""
    (optimizer,) = adamw(model, lr=2e-3)
    prepared, found = step_batch(objective, batch, 3), []
    for step in range(steps):
        loss = forward_backward(model, prepared, plan(), step)
        found.append([float(s) / n for s, n in zip(loss.sums, loss.counts, strict=True)])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if max(found[-1]) < 0.05:
            break
    return found


DAMAGE = Denoising(
    mask_id=MASK,
    start_id=END,
    end_id=END,
    pad_id=PAD,
    probability=0.15,
    mask_tokens=0.1,
    delete_tokens=0.1,
    rotate_documents=0.5,
)


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("bert-tiny", masked(span_lengths=harmonic_lengths(3))),
        ("bart-tiny", DAMAGE),
        ("gpt2-tiny", PrefixLM()),
        ("llama-tiny", PrefixLM(both_ways=True)),
        ("t5-tiny", PrefixPairs(start_id=PAD, end_id=END, pad_id=PAD)),
        ("gpt2-tiny", Causal(context=6)),
    ],
    ids=["n-grams", "noises", "prefix", "prefix both ways", "prefix pairs", "context"],
)
def test_one_batch_is_learnt_by_heart(name, objective):
    model = build(presets[name].replace(vocab_size=VOCABULARY).with_dropout(0.0))
    ids = texts()
    if isinstance(objective, Causal):
        # Windows are told apart by how they begin.
        ids = np.random.default_rng(2).permutation(np.arange(4, 43))[: 2 * LENGTH].reshape(2, -1)
    rows = RowBatch(ids, np.full(len(ids), LENGTH))
    batch = objective.prepare(rows, RowRandom(0, np.arange(len(ids))))
    found = losses_of(model, objective, batch)
    assert found[0][0] > 1.0
    assert found[-1][0] < 0.05, found[::10]


@pytest.mark.parametrize(("name", "kind"), [("bert-tiny", "nsp"), ("albert-tiny", "order")])
def test_pairs_are_learnt_with_their_tokens(name, kind):
    model = build(presets[name].replace(vocab_size=VOCABULARY).with_dropout(0.0))
    rows = Rows(Documents(texts()), LENGTH)  # type: ignore[arg-type]
    objective = SentencePairs(masked(), kind, LENGTH, CLS, SEP, PAD, others=rows)
    taken = rows.take(np.arange(ROWS), with_documents=True)
    batch = objective.prepare(taken, RowRandom(1, np.arange(ROWS)))
    assert batch.text_labels is not None
    assert 0 < batch.text_labels.sum() < ROWS
    found = losses_of(model, objective, batch)
    assert found[0][1] == pytest.approx(np.log(2), rel=0.3)
    assert max(found[-1]) < 0.05, found[::10]


def test_a_discriminator_and_its_generator_learn_together():
    described = presets["electra-tiny"].replace(vocab_size=VOCABULARY).with_dropout(0.0)
    model = build_with_generator(described, fraction=0.5)
    objective = ReplacedToken(masked(mask_share=1.0, random_share=0.0))
    rows = RowBatch(texts(), np.full(ROWS, LENGTH))
    batch = objective.prepare(rows, RowRandom(0, np.arange(ROWS)))
    found = losses_of(model, objective, batch)
    assert found[0][0] == pytest.approx(np.log(VOCABULARY), rel=0.3)
    assert max(found[-1]) < 0.05, found[::10]
