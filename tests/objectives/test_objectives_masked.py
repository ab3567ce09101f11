"""Masked language modelling: shares, what is never touched, whole words, and its randomness."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_models import BIDIRECTIONAL, VOCABULARY, small_model
from torch.nn import functional as F

from trivium.data import NO_LOSS, RowBatch, RowRandom
from trivium.objectives import Masked, to_device

SPECIALS, PAD, MASK, VOCAB = (0, 1, 2, 3, 4), 0, 4, 997
ROWS, LENGTH = 61, 503


def make_rows(rows=ROWS, length=LENGTH, seed=0, high=VOCAB):
    """[CLS] tokens [SEP] padding, with another special token here and there."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(5, high, (rows, length))
    lengths = generator.integers(length // 2, length + 1, rows)
    ids[generator.random(ids.shape) < 0.02] = 1
    ids[:, 0] = 2
    ids[np.arange(rows), lengths - 1] = 3
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return RowBatch(ids, lengths)


def regular(rows):
    return ~np.isin(rows.input_ids, SPECIALS)


def assert_binomial(count, trials, share):
    """Within five deviations of what independent draws give."""
    deviation = math.sqrt(trials * share * (1 - share))
    assert abs(count - trials * share) <= 5 * deviation + 1e-9, (count, trials, share)


@pytest.mark.parametrize(
    ("probability", "mask_share", "random_share"),
    [(0.15, 0.8, 0.1), (0.2, 0.8, 0.1), (0.4, 1.0, 0.0), (0.3, 0.0, 1.0), (0.15, 0.0, 0.0)],
)
def test_shares(probability, mask_share, random_share):
    objective = Masked.for_vocabulary(
        VOCAB,
        MASK,
        SPECIALS,
        probability=probability,
        mask_share=mask_share,
        random_share=random_share,
    )
    rows = make_rows()
    batch = objective.prepare(rows, RowRandom(7, np.arange(ROWS)))
    can, chosen = regular(rows), batch.labels != NO_LOSS
    assert not (chosen & ~can).any()
    assert_binomial(chosen.sum(), can.sum(), probability)
    assert (batch.labels[chosen] == rows.input_ids[chosen]).all()
    assert (batch.input_ids[~chosen] == rows.input_ids[~chosen]).all()

    masked = chosen & (batch.input_ids == MASK)
    same = chosen & (batch.input_ids == rows.input_ids)
    swapped = chosen & ~masked & ~same
    # One swap in V - 5 puts back the token that stood there.
    kept_share = (1 - mask_share - random_share) + random_share / (VOCAB - 5)
    assert_binomial(masked.sum(), chosen.sum(), mask_share)
    assert_binomial(same.sum(), chosen.sum(), kept_share)
    assert_binomial(swapped.sum(), chosen.sum(), 1 - mask_share - kept_share)
    assert not np.isin(batch.input_ids[swapped], SPECIALS).any()


def test_swapped_tokens_are_drawn_evenly_from_all_regular_ones():
    objective = Masked.for_vocabulary(
        23, MASK, SPECIALS, probability=0.9, mask_share=0.0, random_share=1.0
    )
    rows = RowBatch(np.full((101, 499), 5), np.full(101, 499))
    batch = objective.prepare(rows, RowRandom(1, np.arange(101)))
    drawn = batch.input_ids[batch.labels != NO_LOSS]
    counts = np.bincount(drawn, minlength=23)
    assert not counts[list(SPECIALS)].any()
    for token in range(5, 23):
        assert_binomial(counts[token], drawn.size, 1 / 18)


def test_choice_fate_and_column_are_independent():
    objective = Masked.for_vocabulary(VOCAB, MASK, SPECIALS, probability=0.5)
    rows = RowBatch(np.full((401, 101), 7), np.full(401, 101))
    batch = objective.prepare(rows, RowRandom(3, np.arange(401)))
    chosen = batch.labels != NO_LOSS
    for column in range(101):
        assert_binomial(chosen[:, column].sum(), 401, 0.5)
    both = (chosen[:, 1:] & chosen[:, :-1]).sum()
    assert abs(both / chosen[:, 1:].size - 0.25) < 0.01
    masked = batch.input_ids[chosen] == MASK
    assert_binomial(masked.sum(), masked.size, 0.8)


def test_every_token_is_chosen_in_some_epoch_and_epochs_differ():
    objective, rows = Masked.for_vocabulary(VOCAB, MASK, SPECIALS), make_rows(3, 47)
    seen = np.zeros(rows.input_ids.shape, dtype=bool)
    masks = []
    for epoch in range(60):
        batch = objective.prepare(rows, RowRandom(0, np.arange(3) + 3 * epoch))
        masks.append(batch.labels != NO_LOSS)
        seen |= masks[-1]
    assert (seen == regular(rows)).all()
    assert not (masks[0] == masks[1]).all()


@pytest.mark.parametrize("whole_words", [True, False])
def test_the_mask_of_a_row_is_its_own(whole_words):
    """Same (seed, position): same noise, whoever else is in the batch; another seed: another."""
    continues = np.arange(VOCAB) % 3 == 0 if whole_words else None
    objective = Masked.for_vocabulary(VOCAB, MASK, SPECIALS, continues_word=continues)
    rows, positions = make_rows(7, 53), np.array([5, 900, 2**40, 11, 12, 13, 0])
    whole = objective.prepare(rows, RowRandom(1, positions))
    for row in (6, 2, 0):
        alone = RowBatch(rows.input_ids[row : row + 1], rows.lengths[row : row + 1])
        single = objective.prepare(alone, RowRandom(1, positions[row : row + 1]))
        assert (single.input_ids[0] == whole.input_ids[row]).all()
        assert (single.labels[0] == whole.labels[row]).all()
    other = objective.prepare(rows, RowRandom(2, positions))
    assert (other.labels != whole.labels).any()


def test_preparing_leaves_the_rows_alone():
    rows = make_rows(5, 31)
    before = rows.input_ids.copy()
    Masked.for_vocabulary(VOCAB, MASK, SPECIALS).prepare(rows, RowRandom(1, np.arange(5)))
    assert (rows.input_ids == before).all()


def words_of(row, continues):
    """Columns of each word: a piece that continues joins the one before it."""
    words: list[list[int]] = []
    for column, token in enumerate(row):
        if words and continues[token]:
            words[-1].append(column)
        else:
            words.append([column])
    return words


def make_words(rows, length, share, seed=0):
    """Ids from 500 on continue a word; `share` of all tokens do."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(5, 500, (rows, length))
    return RowBatch(
        ids + 497 * (generator.random(ids.shape) < share), np.full(rows, length)
    ), np.arange(VOCAB + 5) >= 500


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_whole_words_are_chosen_together(share):
    rows, continues = make_words(67, 97, share)
    objective = Masked.for_vocabulary(
        VOCAB + 5, MASK, SPECIALS, probability=0.2, continues_word=continues
    )
    batch = objective.prepare(rows, RowRandom(0, np.arange(67)))
    chosen = batch.labels != NO_LOSS
    words = [(row, w) for row in range(67) for w in words_of(rows.input_ids[row], continues)]
    for row, columns in words:
        assert chosen[row, columns].all() or not chosen[row, columns].any()
    assert_binomial(sum(chosen[row, columns[0]] for row, columns in words), len(words), 0.2)


@pytest.mark.parametrize("first", ["word", "piece"])
def test_neighbouring_words_are_chosen_independently(first):
    """Every pair of neighbours in a row, the first and the last pair included."""
    rows, continues = make_words(4001, 7, 0.0)
    if first == "piece":
        rows.input_ids[:, 0] = 600
    objective = Masked.for_vocabulary(
        VOCAB + 5, MASK, SPECIALS, probability=0.5, continues_word=continues
    )
    chosen = objective.prepare(rows, RowRandom(0, np.arange(4001))).labels != NO_LOSS
    for column in range(6):
        both = chosen[:, column] & chosen[:, column + 1]
        assert_binomial(both.sum(), 4001, 0.25)


def test_special_tokens_end_a_word():
    continues = np.zeros(VOCAB, dtype=bool)
    continues[600:] = True
    ids = np.array([[2, 7, 600, 601, 3, 8, 602, 0, 0]])
    objective = Masked.for_vocabulary(
        VOCAB, MASK, SPECIALS, probability=0.5, continues_word=continues
    )
    rows = RowBatch(ids, np.array([7]))
    for position in range(100):
        labels = objective.prepare(rows, RowRandom(0, [position])).labels[0]
        chosen = labels != NO_LOSS
        assert not chosen[[0, 4, 7, 8]].any()
        assert chosen[1] == chosen[2] == chosen[3]
        assert chosen[5] == chosen[6]


def test_padding_becomes_an_attention_mask_and_full_rows_need_none():
    objective, rows = Masked.for_vocabulary(VOCAB, MASK, SPECIALS), make_rows(5, 31)
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)))
    assert (batch.attention_mask == (np.arange(31) < rows.lengths[:, None])).all()
    full = RowBatch(rows.input_ids, np.full(5, 31))
    assert objective.prepare(full, RowRandom(0, np.arange(5))).attention_mask is None


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_the_loss_is_the_cross_entropy_of_the_chosen_tokens(name):
    model = small_model(name)
    objective = Masked.for_vocabulary(VOCABULARY, MASK, SPECIALS, probability=0.3)
    rows = make_rows(5, 23, high=VOCABULARY)
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)))
    loss = objective.loss(model, to_device(batch, torch.device("cpu")))
    ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
    logits = model.logits(model(ids, attention_mask=mask)).flatten(0, 1)
    labels = torch.from_numpy(batch.labels).flatten()
    expected = F.cross_entropy(logits, labels, reduction="sum")
    assert loss.count == batch.num_labels
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-5)
