"""Denoising: shares and Poisson lengths, sentences in another order, the whole text asked for."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from small_models import small_model
from torch.nn import functional as F

from trivium.data import NO_LOSS, RowBatch, RowRandom
from trivium.objectives import Denoising, to_device
from trivium.objectives.denoising import ends_sentence

PAD, END, MASK, STOP, TEXT = 1, 2, 4, 5, 7


def objective_of(**changes) -> Denoising:
    known = {"mask_id": MASK, "start_id": END, "end_id": END, "pad_id": PAD}
    return Denoising(**{**known, **changes})


def with_sentences(vocab_size: int) -> np.ndarray:
    return np.arange(vocab_size) == STOP


def make_rows(rows: int, length: int, lengths=None) -> RowBatch:
    """Rows in which every token is another."""
    ids = np.tile(np.arange(length) + TEXT, (rows, 1))
    lengths = np.full(rows, length) if lengths is None else np.array(lengths)
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return RowBatch(ids, lengths)


def spans_of(shown: list[int], length: int) -> list[int]:
    """Tokens behind each mask of a row made by `make_rows`, told from its neighbours."""
    found, last, masks = [], TEXT - 1, 0
    for token in [*shown, TEXT + length]:
        if token == MASK:
            masks += 1
            continue
        # Spans never touch, so that every mask stands alone.
        assert masks <= 1
        found += [token - last - 1] * masks
        assert masks or token == last + 1
        last, masks = token, 0
    return found


@pytest.mark.parametrize(("share", "mean"), [(0.3, 3.0), (0.15, 1.5), (0.5, 6.0)])
def test_lengths_are_poisson_and_the_share_is_exact(share, mean):
    length, count = 3001, 23
    objective = objective_of(probability=share, mean_span=mean)
    batch = objective.prepare(make_rows(count, length), RowRandom(7, np.arange(count)))
    spans = []
    for row in batch.input_ids:
        here = spans_of([int(i) for i in row if i != PAD], length)
        assert sum(here) == round(share * length)
        spans += here
    sizes = Counter(spans)
    for size in range(9):
        expected = math.exp(-mean) * mean**size / math.factorial(size)
        spread = 5 * math.sqrt(expected / len(spans)) + 0.006
        assert abs(sizes[size] / len(spans) - expected) < spread, size
    assert np.mean(spans) == pytest.approx(mean, rel=0.03)
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).mean() == pytest.approx(
        objective.lengths(length)[0], rel=0.02
    )


def test_places_are_even():
    batch = objective_of().prepare(make_rows(4001, 13), RowRandom(1, np.arange(4001)))
    missing = np.array([[i not in row for i in range(TEXT, TEXT + 13)] for row in batch.input_ids])
    share = missing.mean()
    spread = 5 * math.sqrt(share * (1 - share) / 4001)
    # Hidden stretches reach the ends of a row less often, as any window does.
    assert (np.abs(missing[:, 4:9].mean(0) - missing[:, 4:9].mean()) < spread).all()
    assert (missing.mean(0) > 0.5 * share).all()


def test_the_decoder_writes_the_whole_row():
    rows = make_rows(5, 31, [31, 31, 17, 3, 1])
    batch = objective_of().prepare(rows, RowRandom(0, np.arange(5)))
    assert batch.labels is not None
    assert batch.decoder_input_ids is not None
    real = np.arange(31) < rows.lengths[:, None]
    assert (batch.labels[real] == rows.input_ids[real]).all()
    assert (batch.labels[~real] == NO_LOSS).all()
    assert (batch.decoder_input_ids[:, 0] == END).all()
    assert (batch.decoder_input_ids[:, 1:] == rows.input_ids[:, :-1]).all()
    assert batch.input_ids.shape[1] <= 31


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("length", [1, 2, 3, 11])
def test_no_row_grows(share, length):
    objective = objective_of(probability=share, mean_span=1.0)
    batch = objective.prepare(make_rows(101, length), RowRandom(2, np.arange(101)))
    assert batch.input_ids.shape[1] <= length
    for row in batch.input_ids.tolist():
        kept = [i for i in row if i >= TEXT]
        assert kept == sorted(set(kept))
        assert len(kept) >= length - round(share * length)


def test_sentences_change_places_within_their_document():
    # Sentences a, b, c of one document, d and e of the next one.
    a, b, c = [7, 8, STOP], [9, STOP], [10, 11, 12, STOP]
    d, e = [13, 14, STOP], [15, STOP]
    ids = [6, *a, *b, *c, END, 6, *d, *e, END]
    count = 3000
    rows = RowBatch(np.tile(ids, (count, 1)), np.full(count, len(ids)))
    objective = objective_of(probability=0.0, sentence_ends=with_sentences(20), begin_id=6)
    batch = objective.prepare(rows, RowRandom(0, np.arange(count)))
    seen = Counter(tuple(row) for row in batch.input_ids.tolist())
    orders = [
        (6, *x, *y, *z, END, 6, *v, *w, END)
        for x, y, z in ((a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a))
        for v, w in ((d, e), (e, d))
    ]
    assert {*seen} == {*orders}
    for found in seen.values():
        assert abs(found - count / 12) < 5 * math.sqrt(count * 11 / 144)


def test_the_docstring_is_one_of_the_draws():
    words = ["the", "cat", "sat", "on", "it", ".", "we", "saw", "it", ".", "</s>"]
    known = {"the": 7, "cat": 8, "sat": 9, "on": 10, "it": 11, "we": 12, "saw": 13}
    known |= {".": STOP, "</s>": END, "<m>": MASK}
    row = np.array([[known[word] for word in words]])
    wanted = [
        known[word]
        for word in ["<m>", "we", "saw", "it", ".", "the", "cat", "<m>", "it", ".", "</s>"]
    ]
    objective = objective_of(probability=0.18, sentence_ends=with_sentences(20))
    count = 9000
    rows = RowBatch(np.tile(row, (count, 1)), np.full(count, 11))
    batch = objective.prepare(rows, RowRandom(0, np.arange(count)))
    assert wanted in batch.input_ids.tolist()


def test_the_noise_of_a_row_is_its_own():
    rows, positions = make_rows(5, 67), np.array([8, 2**40, 3, 0, 77])
    objective = objective_of(sentence_ends=np.arange(99) % 9 == 0)
    whole = objective.prepare(rows, RowRandom(1, positions))
    for row in (4, 1):
        alone = RowBatch(rows.input_ids[row : row + 1], rows.lengths[row : row + 1])
        single = objective.prepare(alone, RowRandom(1, positions[row : row + 1])).input_ids[0]
        assert (single == whole.input_ids[row, : len(single)]).all()
    other = objective.prepare(rows, RowRandom(2, positions))
    assert other.input_ids.tolist() != whole.input_ids.tolist()


def test_preparing_leaves_the_rows_alone():
    rows = make_rows(3, 29)
    before = rows.input_ids.copy()
    objective_of(sentence_ends=np.arange(99) % 9 == 0).prepare(rows, RowRandom(0, np.arange(3)))
    assert (rows.input_ids == before).all()


def test_ends_of_sentences_are_told_from_what_tokens_say():
    assert ends_sentence(["a", "b"]) is None
    found = ends_sentence([" .", "mat.", ".)", "\u3002", "3.1", ",", ""])
    assert found is not None
    assert found.tolist() == [True, True, True, True, False, False, False]


def test_the_loss_is_the_cross_entropy_of_every_token():
    model, generator = small_model("bart"), np.random.default_rng(0)
    rows = RowBatch(generator.integers(7, 43, (5, 23)), np.array([23, 17, 5, 2, 1]))
    objective = objective_of(sentence_ends=np.arange(43) % 9 == 0)
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)))
    loss = objective.loss(model, to_device(batch, torch.device("cpu")))
    assert batch.labels is not None
    assert batch.attention_mask is not None
    assert batch.decoder_input_ids is not None
    hidden = model(
        torch.from_numpy(batch.input_ids),
        attention_mask=torch.from_numpy(batch.attention_mask),
        decoder_input_ids=torch.from_numpy(batch.decoder_input_ids),
    )
    labels = torch.from_numpy(batch.labels)
    expected = F.cross_entropy(
        model.logits(hidden).flatten(0, 1), labels.flatten(), reduction="sum"
    )
    assert loss.count == batch.num_labels == int(rows.lengths.sum())
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-5)
