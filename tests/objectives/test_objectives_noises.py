"""BART's other noises: tokens masked and deleted, documents rotated, alone and together."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from trivium.data import RowBatch, RowRandom
from trivium.objectives import Denoising

PAD, END, BEGIN, MASK, STOP, TEXT = 1, 2, 3, 4, 5, 7
ALL = {
    "mask_tokens": 0.1,
    "delete_tokens": 0.2,
    "rotate_documents": 0.5,
    "sentence_ends": np.arange(999) % 9 == 5,
}


def objective_of(**changes) -> Denoising:
    known = {"mask_id": MASK, "start_id": END, "end_id": END, "pad_id": PAD, "begin_id": BEGIN}
    return Denoising(**{**known, "probability": 0.0, **changes})


def make_rows(rows: int, length: int, lengths=None) -> RowBatch:
    """Rows in which every token is another."""
    ids = np.tile(np.arange(length) + TEXT, (rows, 1))
    lengths = np.full(rows, length) if lengths is None else np.array(lengths)
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return RowBatch(ids, lengths)


def repeated(ids: list[int], count: int) -> RowBatch:
    return RowBatch(np.tile(ids, (count, 1)), np.full(count, len(ids)))


def shown(batch) -> list[list[int]]:
    """What the encoder reads of every row, without padding."""
    mask = batch.attention_mask
    real = np.ones_like(batch.input_ids) if mask is None else mask
    return [row[keep > 0].tolist() for row, keep in zip(batch.input_ids, real, strict=True)]


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0])
def test_masked_tokens(share):
    rows = make_rows(401, 101, np.arange(401) % 101 + 1)
    batch = objective_of(mask_tokens=share).prepare(rows, RowRandom(0, np.arange(401)))
    masked = batch.input_ids == MASK
    assert (batch.input_ids[~masked] == rows.input_ids[~masked]).all()
    assert not (masked & (rows.input_ids == PAD)).any()
    count, total = masked.sum(), rows.lengths.sum()
    assert abs(count - share * total) <= 5 * math.sqrt(share * (1 - share) * total)


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_deleted_tokens(share):
    rows = make_rows(401, 101)
    objective = objective_of(delete_tokens=share)
    batch = objective.prepare(rows, RowRandom(0, np.arange(401)))
    found = shown(batch)
    left = sum(map(len, found))
    assert all(row == sorted(row) and row for row in found)
    if share < 1.0:
        assert abs(left - (1 - share) * 40501) < 5 * math.sqrt(share * (1 - share) * 40501)
        assert left / 401 == pytest.approx(objective.lengths(101)[0], abs=1.5)
        places = np.bincount(np.concatenate(found) - TEXT, minlength=101) / 401
        assert (np.abs(places - 1 + share) < 5 * math.sqrt(share * (1 - share) / 401)).all()
    assert batch.labels is not None
    assert (batch.labels == rows.input_ids).all()


def test_a_document_begins_with_any_of_its_tokens():
    a, b = [7, 8, 9, 10, 11], [12, 13, 14]
    ids, count = [BEGIN, *a, END, BEGIN, *b, END, BEGIN, 15], 6007
    batch = objective_of(rotate_documents=1.0).prepare(
        repeated(ids, count), RowRandom(0, np.arange(count))
    )
    seen = Counter(tuple(row) for row in batch.input_ids.tolist())
    turned = [
        (BEGIN, *a[i:], *a[:i], END, BEGIN, *b[j:], *b[:j], END, BEGIN, 15)
        for i in range(5)
        for j in range(3)
    ]
    assert {*seen} == {*turned}
    for found in seen.values():
        assert abs(found - count / 15) < 5 * math.sqrt(count * 14 / 225)


def test_a_share_of_documents_turns():
    ids, count = [*range(7, 107), END, *range(107, 207)], 5003
    batch = objective_of(rotate_documents=0.3).prepare(
        repeated(ids, count), RowRandom(0, np.arange(count))
    )
    # One time in a hundred it turns to where it was.
    expected = 0.3 * 0.99
    spread = 5 * math.sqrt(expected * (1 - expected) / count)
    first, second = batch.input_ids[:, 0] != 7, batch.input_ids[:, 101] != 107
    assert abs(first.mean() - expected) < spread
    assert abs(second.mean() - expected) < spread
    assert abs((first & second).mean() - expected**2) < spread


def test_truncated_rows_turn_before_their_padding():
    rows = make_rows(499, 11, [11, 7, 3, 2, 1] * 99 + [11, 7, 3, 2])
    batch = objective_of(rotate_documents=1.0).prepare(rows, RowRandom(0, np.arange(499)))
    for row, length in zip(batch.input_ids, rows.lengths, strict=True):
        shift = row[0] - TEXT
        assert row[:length].tolist() == np.roll(np.arange(length) + TEXT, -shift).tolist()
        assert (row[length:] == PAD).all()


def test_the_examples_of_the_docstring():
    words = ["the", "cat", "sat", "on", "it", ".", "we", "saw", "it", ".", "</s>"]
    known = {"the": 7, "cat": 8, "sat": 9, "on": 10, "it": 11, "we": 12, "saw": 13}
    known |= {".": STOP, "</s>": END, "<m>": MASK}
    rows = repeated([known[word] for word in words], 2000)
    lines = (Denoising.__doc__ or "").splitlines()
    for noise in ("mask_tokens", "delete_tokens", "rotate_documents"):
        (line,) = (line.split() for line in lines if line.startswith(" " * 8 + noise + " "))
        batch = objective_of(**{noise: 0.3}).prepare(rows, RowRandom(0, np.arange(2000)))
        assert [known[word] for word in line[1:]] in shown(batch), noise


def test_all_together_in_the_order_of_the_docstring():
    """Masks and gaps in a turned text; the spans of infilling hide masks as other tokens."""
    length, count = 1009, 31
    objective = objective_of(probability=0.3, **ALL | {"sentence_ends": None})
    rows = make_rows(count, length)
    batch = objective.prepare(rows, RowRandom(3, np.arange(count)))
    sizes = []
    for row in shown(batch):
        kept = np.array([i for i in row if i != MASK])
        assert len(set(kept.tolist())) == len(kept)
        # Turned at one place at most.
        assert (np.diff(kept) < 0).sum() <= 1
        sizes.append(len(row))
    assert np.mean(sizes) == pytest.approx(objective.lengths(length)[0], rel=0.02)
    kept_share = 0.9 * 0.8 * 0.7
    kept = sum(sum(i != MASK for i in row) for row in shown(batch))
    assert kept / (length * count) == pytest.approx(kept_share, rel=0.02)


@pytest.mark.parametrize("changes", [{"delete_tokens": 1.0}, {"probability": 1.0}, ALL])
@pytest.mark.parametrize("length", [1, 2, 3, 11])
def test_rows_neither_grow_nor_vanish(changes, length):
    rows = make_rows(101, length)
    objective = objective_of(**{"probability": 0.5, **changes})
    batch = objective.prepare(rows, RowRandom(2, np.arange(101)))
    assert batch.input_ids.shape[1] <= length
    assert all(shown(batch))


def test_rows_of_special_tokens_alone():
    ids = np.array([[END] * 7, [BEGIN, END] * 3 + [BEGIN], [BEGIN] + [END] + [PAD] * 5])
    rows = RowBatch(ids, np.array([7, 7, 2]))
    batch = objective_of(rotate_documents=1.0).prepare(rows, RowRandom(0, np.arange(3)))
    assert (batch.input_ids == ids).all()


def test_the_noise_of_a_row_is_its_own():
    generator = np.random.default_rng(0)
    rows = RowBatch(generator.integers(2, 97, (5, 67)), np.array([67, 31, 67, 2, 11]))
    objective = objective_of(probability=0.3, **ALL)
    positions = np.array([8, 2**40, 3, 0, 77])
    whole = shown(objective.prepare(rows, RowRandom(1, positions)))
    for row in range(5):
        length = rows.lengths[row]
        alone = RowBatch(rows.input_ids[row : row + 1, :length], rows.lengths[row : row + 1])
        (single,) = shown(objective.prepare(alone, RowRandom(1, positions[row : row + 1])))
        assert single == whole[row]


def test_what_is_off_changes_nothing():
    rows = make_rows(7, 53)
    plain = objective_of(probability=0.3).prepare(rows, RowRandom(0, np.arange(7)))
    off = {"mask_tokens": 0.0, "delete_tokens": 0.0, "rotate_documents": 0.0}
    same = objective_of(probability=0.3, **off).prepare(rows, RowRandom(0, np.arange(7)))
    assert (plain.input_ids == same.input_ids).all()
