"""Span corruption and denoising: published lengths and shares, and nothing of the text lost."""

from __future__ import annotations

import math
import re
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import torch
from small_models import small_model
from torch.nn import functional as F

from trivium.data.batch import IGNORE_INDEX, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import TriviumError
from trivium.objectives import to_device
from trivium.objectives.denoising import Denoising
from trivium.objectives.span_corruption import SpanCorruption
from trivium.text.vocabulary import Vocabulary

pytestmark = pytest.mark.usefixtures("double_precision")

PAD, END, MASK, FIRST = 0, 1, 2, 3
SENTINELS = tuple(range(FIRST, FIRST + 100))
TEXT, STOP = FIRST + 100, 9_999  # ids of text; the id that ends a sentence
FACTS = {"pad_id": PAD, "eos_id": END, "mask_id": MASK, "suffix_ids": (END,)}
VOCAB = Vocabulary(
    size=10_000,
    sentinel_ids=SENTINELS,
    texts=lambda: ["." if n == STOP else "x" for n in range(10_000)],
    **FACTS,
)


def make_rows(rows, length, lengths=None):
    """Rows in which every token is another."""
    ids = np.arange(rows * length).reshape(rows, length) + TEXT
    lengths = np.full(rows, length) if lengths is None else np.array(lengths)
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return RowBatch(ids, lengths)


def pieces(ids):
    """Sentinel -> what follows it; under -1 what stands before the first."""
    found = {-1: []}
    current = -1
    for token in ids:
        if token in SENTINELS:
            assert token not in found
            current = token
            found[current] = []
        elif token == END:
            break
        else:
            found[current].append(token)
    return found


def test_preparing_long_rows_takes_memory_of_their_size():
    """A table of all spans of all rows would take some 400 bytes for each token."""
    rows = make_rows(16, 4096)
    objective = SpanCorruption(probability=0.15, mean_span=8.0)
    objective.prepare(rows, RowRandom(0, np.arange(16)), VOCAB)
    tracemalloc.start()
    objective.prepare(rows, RowRandom(0, np.arange(16)), VOCAB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * rows.input_ids.size


def test_span_lengths_are_those_of_the_released_code_and_nothing_is_lost():
    for length, density, mean in ((568, 0.15, 3.0), (97, 0.5, 3.0), (128, 0.15, 10.0)):
        noise = int(round(length * density))  # noqa: RUF046 - as published
        spans = int(round(noise / mean))  # noqa: RUF046
        rows = make_rows(5, length)
        objective = SpanCorruption(probability=density, mean_span=mean)
        batch = objective.prepare(rows, RowRandom(3, np.arange(5)), VOCAB)
        assert batch.decoder_input_ids is not None
        assert batch.labels is not None
        assert batch.input_ids.shape == (5, length - noise + spans + 1)
        assert batch.labels.shape == batch.decoder_input_ids.shape == (5, noise + spans + 1)
        assert batch.attention_mask is None
        assert (batch.decoder_input_ids[:, 0] == PAD).all()
        assert (batch.decoder_input_ids[:, 1:] == batch.labels[:, :-1]).all()
        for row in range(5):
            shown, target = batch.input_ids[row].tolist(), batch.labels[row].tolist()
            assert shown[-1] == target[-1] == END
            gaps, fills = pieces(shown), pieces(target)
            assert fills.pop(-1) == []
            order = [token for token in shown if token in SENTINELS]
            assert order == [*fills] == list(SENTINELS[:spans])
            assert sum(map(len, fills.values())) == noise
            whole = gaps[-1] + [token for s in order for token in fills[s] + gaps[s]]
            assert whole == rows.input_ids[row].tolist()
    # The T5 paper's setting: 568 tokens become inputs of 512 and targets of 114.
    assert SpanCorruption().count_noise_spans(568) == (85, 28)


def test_the_example_of_the_docstring_is_one_of_the_draws():
    example = [
        re.findall(rf"^ +{name} +(.*)$", SpanCorruption.__doc__ or "", re.MULTILINE)[0].split()
        for name in ("row", "input_ids", "decoder_input_ids", "labels")
    ]
    known = {"<p>": PAD, "</s>": END, "<x>": FIRST, "<y>": FIRST + 1}
    known |= {word: index for index, word in enumerate(example[0], TEXT)}
    row, *expected = ([known[word] for word in words] for words in example)
    rows = RowBatch(np.tile(row, (300, 1)), np.full(300, len(row)))
    objective = SpanCorruption(probability=0.4, mean_span=2.0)
    arrays = objective.prepare(rows, RowRandom(0, np.arange(300)), VOCAB).arrays()
    names = ("input_ids", "decoder_input_ids", "labels")
    assert tuple(expected) in zip(*(arrays[name].tolist() for name in names), strict=True)


def test_every_division_into_spans_is_equally_probable():
    """Four noise tokens in two spans: 1 + 3, 2 + 2 and 3 + 1, each a third of the time."""
    count = 3000
    rows = RowBatch(np.repeat(make_rows(1, 11).input_ids, count, 0), np.full(count, 11))
    objective = SpanCorruption(probability=0.36, mean_span=2.0)
    batch = objective.prepare(rows, RowRandom(5, np.arange(count)), VOCAB)
    assert batch.labels is not None
    sizes = Counter(len(pieces(row.tolist())[FIRST]) for row in batch.labels)
    for size in (1, 2, 3):
        assert abs(sizes[size] - count / 3) < 5 * math.sqrt(count * 2 / 9)


def test_short_rows_are_padded_and_more_spans_than_sentinels_refused():
    rows = make_rows(4, 31, [31, 20, 2, 1])
    batch = SpanCorruption().prepare(rows, RowRandom(0, np.arange(4)), VOCAB)
    assert batch.attention_mask is not None
    assert batch.labels is not None
    for row, length in enumerate((31, 20, 2)):
        noise, spans = SpanCorruption().count_noise_spans(length)
        assert batch.attention_mask[row].sum() == length - noise + spans + 1
        assert (batch.labels[row] != IGNORE_INDEX).sum() == noise + spans + 1
    assert (batch.labels[3] == IGNORE_INDEX).all()
    few = Vocabulary(size=500, sentinel_ids=SENTINELS[:5], **FACTS)
    with pytest.raises(TriviumError, match="only 5 sentinels"):
        SpanCorruption().prepare(make_rows(2, 128), RowRandom(0, [0, 1]), few)


def sentences(rows=37, length=61):
    """Rows of two documents of several sentences each, every token of text another."""
    ids = np.arange(rows * length).reshape(rows, length) % 9000 + TEXT
    ids[:, [9, 17, 25, 44, 52]] = STOP
    ids[:, [30, 60]] = END
    return RowBatch(ids, np.full(rows, length))


def test_each_noise_of_denoising_does_what_its_name_says():
    rows = sentences()
    rng = RowRandom(3, np.arange(37))
    off = {"probability": 1e-9, "permute_sentences": False}
    plain = Denoising(**off).prepare(rows, rng, VOCAB)
    assert (plain.input_ids == rows.input_ids).all()
    assert plain.labels is not None
    assert plain.decoder_input_ids is not None
    assert (plain.labels == rows.input_ids).all()
    assert (plain.decoder_input_ids[:, 0] == END).all()
    permuted = Denoising(probability=1e-9).prepare(rows, rng, VOCAB).input_ids
    assert (permuted != rows.input_ids).any()
    assert (np.sort(permuted[:, :30]) == np.sort(rows.input_ids[:, :30])).all()
    assert (permuted[:, [30, 60]] == END).all()
    rotated = Denoising(**off, rotate_documents=1.0).prepare(rows, rng, VOCAB).input_ids
    assert (np.sort(rotated[:, 31:60]) == np.sort(rows.input_ids[:, 31:60])).all()
    turn = np.argmax(rotated[0, :30] == rows.input_ids[0, 0])
    assert (np.roll(rotated[0, :30], -turn) == rows.input_ids[0, :30]).all()
    masked = Denoising(**off, mask_tokens=0.3).prepare(rows, rng, VOCAB).input_ids
    share = (masked == MASK).mean()
    assert abs(share - 0.3) < 5 * math.sqrt(0.21 / masked.size)
    assert ((masked == MASK) | (masked == rows.input_ids)).all()
    deleted = Denoising(**off, delete_tokens=0.3).prepare(rows, rng, VOCAB)
    assert deleted.attention_mask is not None
    for row in range(37):
        left = deleted.input_ids[row][deleted.attention_mask[row] > 0]
        positions = [rows.input_ids[row].tolist().index(token) for token in left if token >= TEXT]
        assert all(token in rows.input_ids[row] for token in left)
        assert len(positions) < 61
    both = Denoising(**off, mask_tokens=0.5, delete_tokens=0.5).prepare(rows, rng, VOCAB)
    assert both.attention_mask is not None
    left = both.input_ids[both.attention_mask > 0]
    assert abs((left == MASK).mean() - 0.5) < 5 * 0.5 / math.sqrt(left.size)


def test_text_infilling_replaces_its_share_in_spans():
    rows = make_rows(101, 89)
    objective = Denoising(permute_sentences=False)
    batch = objective.prepare(rows, RowRandom(1, np.arange(101)), VOCAB)
    assert batch.attention_mask is not None
    real = batch.attention_mask.sum(axis=1)
    assert (real <= 89).all()
    for row in range(101):
        shown = batch.input_ids[row][: real[row]]
        text = shown[shown != MASK]
        assert len(text) == 89 - round(89 * 0.3)
        assert (np.diff(text) > 0).all()  # in order
        assert not ((shown[1:] == MASK) & (shown[:-1] == MASK)).any()  # spans never touch
    masks = (batch.input_ids == MASK).sum(axis=1)
    # Mean length 3, with inserted masks of length 0: about a third of the replaced tokens.
    assert 27 / 3 * 0.85 < masks.mean() < 27 / 3 * 1.25
    alone = objective.prepare(rows.slice_rows(7, 8), RowRandom(1, [7]), VOCAB)
    assert (alone.input_ids[0] == batch.input_ids[7, : alone.input_ids.shape[1]]).all()


def test_no_row_of_denoising_grows_longer():
    """As many masks for spans as replaced tokens at most, also where spans are short."""
    lengths = np.arange(1, 90)
    rows = make_rows(89, 89, lengths)
    for mean, share in ((1.0, 0.3), (1.0, 0.7), (3.0, 0.15)):
        objective = Denoising(permute_sentences=False, mean_span=mean, probability=share)
        batch = objective.prepare(rows, RowRandom(2, np.arange(89)), VOCAB)
        assert batch.attention_mask is not None
        real = batch.attention_mask.sum(axis=1)
        masks = (batch.input_ids == MASK).sum(axis=1)
        assert (masks <= lengths - (real - masks)).all()
        assert (masks[lengths > 20] > 0).all()


def test_both_losses_are_the_cross_entropy_of_the_targets():
    model, generator = small_model("t5"), np.random.default_rng(0)
    rows = RowBatch(generator.integers(20, 43, (5, 23)), np.array([23, 17, 5, 2, 1]))
    facts = Vocabulary(size=43, sentinel_ids=SENTINELS[:9], **FACTS)
    for objective in (SpanCorruption(), Denoising(permute_sentences=False)):
        batch = objective.prepare(rows, RowRandom(0, np.arange(5)), facts)
        loss = objective.loss(model, to_device(batch, torch.device("cpu")))["loss"]
        inputs = {k: torch.from_numpy(v) for k, v in batch.arrays().items()}
        labels = inputs.pop("labels").flatten()
        logits = model.logits(model(**inputs)).flatten(0, 1)
        expected = F.cross_entropy(logits, labels, reduction="sum")
        assert int((labels >= 0).sum()) == objective.loss_denominators(batch)["loss"]
        assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
