"""Sentence pairs: where texts are cut, what is put in place of what, and how often."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from small_models import small_model
from torch.nn import functional as F

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom, Rows
from trivium.errors import TriviumError
from trivium.objectives import Masked, SentencePairs, to_device

PAD, UNK, CLS, SEP, MASK, STOP = range(6)
LONGEST, FIRST = 1000, 1000
VOCAB = 90 * LONGEST
CPU = torch.device("cpu")


class Text:
    """A split in memory: documents whose tokens say which document and place they are of."""

    name = "train"
    prefix_ids, suffix_ids = (CLS,), (SEP,)

    def __init__(self, sizes, *, stop: int = 0) -> None:
        documents = [np.array([CLS, *tokens_of(n, s, stop), SEP]) for n, s in enumerate(sizes)]
        self.tokens = np.concatenate(documents)
        self.offsets = np.cumsum([0, *map(len, documents)])
        self.num_tokens, self.num_documents = len(self.tokens), len(documents)

    def tokens_at(self, positions):
        return self.tokens[positions]

    def documents_at(self, positions):
        return np.searchsorted(self.offsets, positions, side="right") - 1

    def document_bounds(self, documents):
        return self.offsets[documents], self.offsets[documents + 1]


def tokens_of(document: int, size: int, stop: int = 0) -> list[int]:
    """Tokens of a document; every `stop`-th one ends a sentence."""
    places = range(size)
    return [
        STOP if stop and n % stop == stop - 1 else FIRST + LONGEST * document + n for n in places
    ]


def masked(probability: float = 0.0, **changes) -> Masked:
    specials = (PAD, UNK, CLS, SEP, MASK)
    return Masked.for_vocabulary(VOCAB, MASK, specials, probability=probability, **changes)


def objective_of(rows: Rows, kind="nsp", **changes) -> SentencePairs:
    known = {"masked": masked(), "cls_id": CLS, "sep_id": SEP, "pad_id": PAD}
    others = rows if kind == "nsp" else None
    known |= {"kind": kind, "length": rows.length, "others": others}
    return SentencePairs(**{**known, **changes})


def prepared(objective: SentencePairs, rows: Rows, epochs: int = 1) -> tuple[RowBatch, Batch]:
    taken = rows.take(np.tile(np.arange(len(rows)), epochs), with_documents=True)
    return taken, objective.prepare(taken, RowRandom(3, np.arange(taken.num_rows)))


def halves(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """A and B of every pair, once its form was checked."""
    assert batch.token_type_ids is not None
    mask = batch.attention_mask
    real = np.ones_like(batch.input_ids) if mask is None else mask
    found = []
    for ids, kinds, keep in zip(batch.input_ids, batch.token_type_ids, real, strict=True):
        count = int(keep.sum())
        assert keep[:count].all()
        assert (ids[count:] == PAD).all()
        assert not kinds[count:].any()
        row = ids[:count].tolist()
        assert row[0] == CLS
        assert row[-1] == SEP
        middle = row.index(SEP)
        assert row.count(SEP) == 2
        assert row.count(CLS) == 1
        assert kinds[:count].tolist() == [0] * (middle + 1) + [1] * (count - middle - 1)
        found.append((row[1:middle], row[middle + 1 : -1]))
    return found


def assert_half(count, trials):
    assert abs(count - trials / 2) < 5 * math.sqrt(trials) / 2


LONG = Rows(Text([211, 307, 97, 503, 401, 811]), 31)
SHORT = Rows(Text([n * 7 % 23 + 2 for n in range(83)]), 61)
SINGLE = Rows(Text([n * 7 % 53 + 2 for n in range(83)]), 37, "truncate", pad_id=PAD)


@pytest.mark.parametrize("rows", [LONG, SHORT, SINGLE])
def test_half_of_the_pairs_are_true_neighbours(rows):
    taken, batch = prepared(objective_of(rows), rows, epochs=29)
    assert batch.text_labels is not None
    labels = batch.text_labels
    assert_half(labels.sum(), len(labels))
    assert batch.num_labels == 0
    for number, (a, b) in enumerate(halves(batch)):
        assert a
        assert b
        assert np.diff(a + b).max() <= 1 or labels[number]
        assert all(np.diff(part).tolist() == [1] * (len(part) - 1) for part in (a, b))
        assert len(a) + len(b) + 3 <= rows.length
        told = (a[-1] + 1 == b[0], a[0] // LONGEST == b[0] // LONGEST)
        assert told == ((False, False) if labels[number] else (True, True))
        # A is of this row.
        assert a[0] in taken.input_ids[number]


@pytest.mark.parametrize("rows", [LONG, SHORT, SINGLE])
def test_half_of_the_pairs_are_in_order(rows):
    _, batch = prepared(objective_of(rows, "order"), rows, epochs=29)
    assert batch.text_labels is not None
    labels = batch.text_labels
    assert_half(labels.sum(), len(labels))
    for (a, b), swapped in zip(halves(batch), labels, strict=True):
        before, after = (b, a) if swapped else (a, b)
        assert np.diff(before + after).tolist() == [1] * (len(a) + len(b) - 1)


def test_the_longest_document_of_a_row_is_taken_whole():
    taken, batch = prepared(objective_of(SHORT, "order"), SHORT)
    assert taken.document_ids is not None
    for number, (a, b) in enumerate(halves(batch)):
        ids, documents = taken.input_ids[number], taken.document_ids[number]
        parts = [
            [i for i in ids[documents == d].tolist() if i not in (CLS, SEP)]
            for d in np.unique(documents)
        ]
        longest = max(parts, key=len)
        assert sorted(a + b) == longest[: SHORT.length - 3]


def test_cuts_are_even():
    rows = Rows(Text([9, 9]), 11, "truncate", pad_id=PAD)
    _, batch = prepared(objective_of(rows, "order"), rows, epochs=4001)
    assert batch.text_labels is not None
    # Of nine tokens eight fit.
    sizes = [len(b if swapped else a) for (a, b), swapped in zip(halves(batch), batch.text_labels)]
    counts = np.bincount(sizes, minlength=8)
    assert counts[0] == 0
    assert len(counts) == 8
    for size in range(1, 8):
        assert abs(counts[size] - 8002 / 7) < 5 * math.sqrt(8002 * 6 / 49)


@pytest.mark.parametrize("kind", ["nsp", "order"])
def test_texts_are_cut_after_sentences(kind):
    rows = Rows(Text([97, 89, 83, 79], stop=6), 41)
    ends = np.arange(VOCAB) == STOP
    objective = objective_of(rows, kind, sentence_ends=ends)
    _, batch = prepared(objective, rows, epochs=53)
    assert batch.text_labels is not None
    late = 0
    for (a, b), false in zip(halves(batch), batch.text_labels, strict=True):
        before, after = (b, a) if false and kind == "order" else (a, b)
        assert before[-1] == STOP
        # A document goes on after an end of a sentence, where one is early enough.
        late += after[0] % LONGEST % 6 != 0 or after[0] == STOP
    assert late < 0.1 * batch.num_rows
    if kind == "order":
        assert late == 0


def test_false_stretches_are_as_long_as_true_ones():
    """Else the length of a pair would tell what it is."""
    _, batch = prepared(objective_of(LONG), LONG, epochs=29)
    assert batch.text_labels is not None
    sizes = np.array([len(a) + len(b) for a, b in halves(batch)])
    whole = sizes == LONG.length - 3
    shares = [whole[batch.text_labels == label].mean() for label in (0, 1)]
    assert abs(shares[0] - shares[1]) < 0.15


def test_the_example_of_the_docstring():
    lines = {
        name: re.sub(r" +text_labels.*", "", line).split()
        for name, line in re.findall(
            r'^ +(row|input_ids|token_type_ids|"order") +(.*)$',
            SentencePairs.__doc__ or "",
            re.MULTILINE,
        )
    }
    words = [*dict.fromkeys(lines["row"][1:-1])]
    known = {"[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
    known |= {word: index for index, word in enumerate(words, FIRST)}
    row = [known[word] for word in lines["row"]]
    count = 4000
    rows = RowBatch(
        np.tile(row, (count, 1)),
        np.full(count, len(row)),
        np.ones((count, len(row)), dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )
    objective = objective_of(LONG, "order", masked=masked(0.2))
    batch = objective.prepare(rows, RowRandom(0, np.arange(count)))
    assert batch.text_labels is not None
    assert batch.token_type_ids is not None
    assert batch.input_ids.shape == (count, len(row) + 1)
    found = {
        (tuple(ids), tuple(kinds), label)
        for ids, kinds, label in zip(
            batch.input_ids.tolist(),
            batch.token_type_ids.tolist(),
            batch.text_labels.tolist(),
            strict=True,
        )
    }
    kinds = tuple(map(int, lines["token_type_ids"]))
    assert (tuple(known[word] for word in lines["input_ids"]), kinds, 0) in found
    swapped = tuple(known[word] for word in lines['"order"'])
    assert any(ids == swapped and label for ids, _, label in found)


def test_tokens_of_both_stretches_are_hidden():
    objective = objective_of(LONG, masked=masked(0.15))
    _, batch = prepared(objective, LONG, epochs=29)
    plain = prepared(objective_of(LONG), LONG, epochs=29)[1].input_ids
    assert batch.labels is not None
    assert batch.text_labels is not None
    chosen = batch.labels != NO_LOSS
    assert (batch.labels[chosen] == plain[chosen]).all()
    assert (batch.input_ids[~chosen] == plain[~chosen]).all()
    text = plain > MASK
    assert not (chosen & ~text).any()
    for part in (0, 1):
        here = text & (batch.token_type_ids == part)
        share, total = chosen[here].mean(), here.sum()
        assert abs(share - 0.15) < 5 * math.sqrt(0.15 * 0.85 / total)
    assert objective.counts(batch) == (chosen.sum(), batch.num_rows)


@pytest.mark.parametrize("kind", ["nsp", "order"])
@pytest.mark.parametrize("rows", [LONG, SHORT, SINGLE])
def test_the_pair_of_a_row_is_its_own(rows, kind):
    objective = objective_of(rows, kind, masked=masked(0.2))
    numbers, positions = np.array([5, 0, 11, 2]), np.array([8, 2**40, 3, 0])
    taken = rows.take(numbers, with_documents=True)
    whole = objective.prepare(taken, RowRandom(1, positions))
    for row in range(4):
        alone = rows.take(numbers[row : row + 1], with_documents=True)
        single = objective.prepare(alone, RowRandom(1, positions[row : row + 1]))
        width = single.input_ids.shape[1]
        for name in ("input_ids", "labels", "token_type_ids"):
            one, all_of_them = getattr(single, name)[0], getattr(whole, name)[row]
            assert (one == all_of_them[:width]).all()
        assert single.text_labels == whole.text_labels[row]
        assert (whole.labels[row, width:] == NO_LOSS).all()


@pytest.mark.parametrize("sizes", [(1, 1, 5), (0, 7, 9), (2, 3, 1), (0, 0, 0), (0, 0, 1)])
@pytest.mark.parametrize("kind", ["nsp", "order"])
def test_texts_too_short_for_a_pair(kind, sizes):
    """One token cannot be cut; rows of special tokens alone are pairs of nothing."""
    rows = Rows(Text(sizes), 9, "truncate", pad_id=PAD)
    objective = objective_of(rows, kind, masked=masked(0.5))
    taken, batch = prepared(objective, rows, epochs=101)
    assert batch.text_labels is not None
    plain = prepared(objective_of(rows, kind), rows, epochs=101)[1]
    for number, (a, b) in enumerate(halves(plain)):
        size = sizes[number % 3]
        if size >= 2:
            assert a
            assert b
            continue
        if kind == "order":
            assert (len(a), len(b), batch.text_labels[number]) == (size, 0, 0)
            continue
        assert len(a) == size
        elsewhere = [s for n, s in enumerate(sizes) if s and n != number % 3]
        # Now and then no draw finds the only document with a text.
        assert b or len(elsewhere) < 2
        assert elsewhere or not b
        assert batch.text_labels[number] == bool(b)
        if b:
            assert b[0] // LONGEST != (a or taken.input_ids[number].tolist())[0] // LONGEST
    assert np.isin(batch.labels[plain.input_ids <= MASK], NO_LOSS).all()


@pytest.mark.parametrize("length", [5, 6, 7])
def test_the_shortest_pairs(length):
    rows = Rows(Text([50, 60, 70]), length)
    _, batch = prepared(objective_of(rows), rows, epochs=11)
    assert batch.input_ids.shape[1] <= length
    assert all(a for a, _ in halves(batch))
    with pytest.raises(TriviumError, match="holds no pair"):
        objective_of(Rows(Text([50, 60]), 4))


def test_one_document_has_no_others():
    rows = Rows(Text([500]), 31)
    with pytest.raises(TriviumError, match="only one"):
        objective_of(rows)
    _, batch = prepared(objective_of(rows, "order"), rows)
    assert batch.num_rows == len(rows)


def test_one_long_document_beside_a_short_one():
    """Nearly every row drawn is of the same document: the pairs found are right all the same."""
    rows = Rows(Text([900, 40]), 31)
    _, batch = prepared(objective_of(rows), rows, epochs=13)
    assert batch.text_labels is not None
    for (a, b), false in zip(halves(batch), batch.text_labels, strict=True):
        assert (a[0] // LONGEST != b[0] // LONGEST) == bool(false)
    assert 0 < batch.text_labels.sum() < 0.5 * batch.num_rows


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_the_loss_is_that_of_both_heads(name):
    model, generator = small_model(name), np.random.default_rng(0)
    rows = RowBatch(
        generator.integers(5, 43, (5, 23)),
        np.array([23, 17, 5, 2, 1]),
        (np.arange(23) < np.array([[23], [17], [5], [2], [1]])).astype(np.int64),
        np.arange(5),
    )
    few = Masked.for_vocabulary(43, MASK, range(5), probability=0.3)
    objective = SentencePairs(few, "order", 29, CLS, SEP, PAD)
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)))
    loss = objective.loss(model, to_device(batch, CPU))
    inputs = {k: torch.from_numpy(v) for k, v in batch.arrays().items()}
    labels, pairs = inputs.pop("labels"), inputs.pop("text_labels")
    hidden = model(**inputs)
    expected = F.cross_entropy(
        model.logits(hidden).flatten(0, 1), labels.flatten(), reduction="sum"
    )
    told = F.cross_entropy(model.logits(hidden, head="nsp"), pairs, reduction="sum")
    (pair_loss,) = loss.others
    assert (loss.name, pair_loss.name, pair_loss.weight) == ("mlm", "order", 1.0)
    assert (loss.count, pair_loss.count) == objective.counts(batch)
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert pair_loss.sum.item() == pytest.approx(told.item(), rel=1e-5)
    assert len(pairs.unique()) == 2
