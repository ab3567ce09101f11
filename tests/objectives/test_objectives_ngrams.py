"""Masked spans: how long they are, how many tokens they hide, and where."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from trivium.data import NO_LOSS, RowBatch, RowRandom
from trivium.objectives import Masked
from trivium.objectives.masked import geometric_lengths, harmonic_lengths

SPECIALS, MASK, VOCAB = (0, 1, 2, 3, 4), 4, 997
THREE, TEN = harmonic_lengths(3), geometric_lengths(10)


def objective_of(**changes) -> Masked:
    return Masked.for_vocabulary(VOCAB, MASK, SPECIALS, **changes)


def chosen_in(objective: Masked, ids: np.ndarray, positions=None) -> np.ndarray:
    rows = RowBatch(ids, np.full(len(ids), ids.shape[1]))
    random = RowRandom(7, np.arange(len(ids)) if positions is None else positions)
    labels = objective.prepare(rows, random).labels
    assert labels is not None
    return labels != NO_LOSS


def text(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(5, VOCAB, (rows, length))


@pytest.mark.parametrize("lengths", [THREE, TEN, (0.0, 1.0), (3.0, 0.0, 0.0, 1.0)])
@pytest.mark.parametrize("probability", [0.0, 0.15, 0.4, 1.0])
def test_every_place_has_its_share(lengths, probability):
    count = 20_011
    chosen = chosen_in(objective_of(probability=probability, span_lengths=lengths), text(count, 13))
    spread = 5 * math.sqrt(probability * (1 - probability) / count)
    assert (np.abs(chosen.mean(0) - probability) <= spread).all(), chosen.mean(0)


@pytest.mark.parametrize("lengths", [THREE, TEN])
@pytest.mark.parametrize("probability", [0.02, 0.15])
def test_lengths_are_those_asked_for(lengths, probability):
    """Runs of chosen tokens are spans that touch: counted as what chance puts together."""
    chosen = chosen_in(objective_of(probability=probability, span_lengths=lengths), text(211, 1009))
    runs: Counter[int] = Counter()
    for row in chosen:
        edges = np.flatnonzero(np.diff(row.astype(np.int64), prepend=0, append=0))
        starts, stops = edges[::2], edges[1::2]
        inside = (starts > 0) & (stops < len(row))
        runs.update((stops - starts)[inside].tolist())
    expected = run_lengths(lengths, probability)
    total = sum(runs.values())
    for size, chance in enumerate(expected, 1):
        spread = 5 * math.sqrt(total * chance) + 1
        assert abs(runs[size] - total * chance) < spread, (size, runs[size], total * chance)


def run_lengths(lengths, probability) -> list[float]:
    """P(run = 1, 2, ...): spans drawn one after another until a token stays."""
    single = np.array([0.0, *lengths]) / sum(lengths)
    mean = single @ np.arange(len(single))
    # s E / (s E + 1 - s) = p
    s = probability / (mean * (1 - probability) + probability)
    total, many = np.zeros(40), np.array([1.0])
    for _ in range(12):
        many = np.convolve(many, single)[:40]
        total[: len(many)] += (1 - s) * many
        many = many * s
    return total[1:14].tolist()


def test_single_tokens_are_what_they_were():
    ids = text(31, 53)
    plain = chosen_in(objective_of(), ids)
    assert (chosen_in(objective_of(span_lengths=(2.0, 0.0)), ids) == plain).all()


def test_spans_of_words_are_whole():
    ids, continues = text(503, 41), np.arange(VOCAB) % 3 == 0
    objective = objective_of(probability=0.2, continues_word=continues.tolist(), span_lengths=THREE)
    chosen = chosen_in(objective, ids)
    begins = ~continues[ids]
    begins[:, 0] = True
    # A piece that goes on with a word has the fate of what is before it.
    assert (chosen[:, 1:] == chosen[:, :-1])[~begins[:, 1:]].all()
    assert abs(chosen[begins].mean() - 0.2) < 5 * math.sqrt(3 * 0.16 / begins.sum())
    assert abs(chosen.mean() - 0.2) < 5 * math.sqrt(6 * 0.16 / chosen.size)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_rows_keep_their_share(length):
    chosen = chosen_in(objective_of(probability=0.3, span_lengths=TEN), text(20_011, length))
    assert abs(chosen.mean() - 0.3) < 5 * math.sqrt(0.21 / 20_011)


def test_special_tokens_are_never_chosen_and_padding_neither():
    ids = text(97, 31)
    ids[:, ::4] = 3
    rows = RowBatch(ids, np.arange(97) % 32)
    batch = objective_of(probability=0.9, span_lengths=TEN).prepare(rows, RowRandom(0, range(97)))
    chosen = batch.labels != NO_LOSS
    assert not chosen[:, ::4].any()
    assert not chosen[np.arange(31) >= rows.lengths[:, None]].any()
    special = RowBatch(np.full((3, 7), 2), np.full(3, 7))
    alone = objective_of(span_lengths=THREE).prepare(special, RowRandom(0, range(3)))
    assert alone.num_labels == 0


@pytest.mark.parametrize("whole_words", [True, False])
def test_the_spans_of_a_row_are_its_own(whole_words):
    continues = (np.arange(VOCAB) % 3 == 0).tolist() if whole_words else None
    objective = objective_of(continues_word=continues, span_lengths=TEN, probability=0.3)
    ids, positions = text(7, 53), np.array([5, 900, 2**40, 11, 12, 13, 0])
    whole = chosen_in(objective, ids, positions)
    for row in (6, 2, 0):
        single = chosen_in(objective, ids[row : row + 1], positions[row : row + 1])
        assert (single[0] == whole[row]).all()
        # More columns, as in a batch with a longer row, change nothing before them.
        longer = np.concatenate([ids[row : row + 1], text(1, 5)], axis=1)
        more = chosen_in(objective, longer, positions[row : row + 1])
        assert (more[0, :53] == whole[row]).all()


def test_lengths_are_those_of_the_papers():
    assert np.allclose(np.array(THREE) / sum(THREE), [6 / 11, 3 / 11, 2 / 11])
    assert np.array(TEN) / sum(TEN) @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)
