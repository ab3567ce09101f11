"""Span corruption: lengths and shares as T5 counts them, and nothing of the text lost."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest
import torch
from small_models import small_model
from torch.nn import functional as F

from trivium.data import NO_LOSS, RowBatch, RowRandom
from trivium.errors import TriviumError
from trivium.objectives import SpanCorruption, to_device

PAD, END, FIRST = 0, 1, 3
SENTINELS = np.arange(100) + FIRST
TEXT = FIRST + 100  # the ids from here on are text


def objective_of(**changes) -> SpanCorruption:
    known = {"sentinels": SENTINELS, "start_id": PAD, "end_id": END, "pad_id": PAD}
    return SpanCorruption(**{**known, **changes})


def make_rows(rows: int, length: int, lengths=None) -> RowBatch:
    """Rows in which every token is another."""
    ids = np.arange(rows * length).reshape(rows, length) + TEXT
    lengths = np.full(rows, length) if lengths is None else np.array(lengths)
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return RowBatch(ids, lengths)


def their_lengths(tokens: int, density: float, mean: float) -> tuple[int, int, int, int]:
    """Inputs, targets, noise and spans by the formula of the released code."""
    noise = int(round(tokens * density))  # noqa: RUF046 - as published
    spans = int(round(noise / mean))  # noqa: RUF046
    return tokens - noise + spans + 1, noise + spans + 1, noise, spans


def pieces(ids: list[int]) -> dict[int, list[int]]:
    """Sentinel -> what follows it; under -1 what stands before the first."""
    found: dict[int, list[int]] = {-1: []}
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


@pytest.mark.parametrize("length", [128, 512, 568, 97])
@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 3.0), (0.15, 10.0)])
def test_lengths_are_those_of_the_paper_and_nothing_is_lost(length, density, mean):
    inputs, targets, noise, spans = their_lengths(length, density, mean)
    rows = make_rows(7, length)
    objective = objective_of(probability=density, mean_span=mean)
    batch = objective.prepare(rows, RowRandom(3, np.arange(7)))
    assert objective.lengths(length) == (inputs, targets)
    assert batch.input_ids.shape == (7, inputs)
    assert batch.decoder_input_ids is not None
    assert batch.labels is not None
    assert batch.labels.shape == batch.decoder_input_ids.shape == (7, targets)
    assert batch.attention_mask is None
    assert (batch.decoder_input_ids[:, 0] == PAD).all()
    assert (batch.decoder_input_ids[:, 1:] == batch.labels[:, :-1]).all()
    for row in range(7):
        shown, hidden = batch.input_ids[row].tolist(), batch.labels[row].tolist()
        assert shown[-1] == hidden[-1] == END
        gaps, fills = pieces(shown), pieces(hidden)
        assert fills.pop(-1) == []
        order = [token for token in shown if token in SENTINELS]
        assert order == [*fills] == SENTINELS[:spans].tolist()
        assert all(fills.values())
        assert sum(map(len, fills.values())) == noise
        whole = gaps[-1] + [token for s in order for token in fills[s] + gaps[s]]
        assert whole == rows.input_ids[row].tolist()


def test_512_tokens_for_the_encoder_are_made_of_568():
    """What the T5 paper's setting gives: inputs of 512, targets of 114."""
    assert objective_of().lengths(568) == (512, 114)


def test_the_example_of_the_docstring_is_one_of_the_draws():
    example = [
        re.findall(rf"^ +{name} +(.*)$", SpanCorruption.__doc__ or "", re.MULTILINE)[0].split()
        for name in ("row", "input_ids", "decoder_input_ids", "labels")
    ]
    known = {"<p>": PAD, "</s>": END, "<x>": FIRST, "<y>": FIRST + 1}
    known |= {word: index for index, word in enumerate(example[0], TEXT)}
    row, *wanted = ([known[word] for word in words] for words in example)
    rows = RowBatch(np.tile(row, (300, 1)), np.full(300, len(row)))
    objective = objective_of(probability=0.4, mean_span=2.0)
    arrays = objective.prepare(rows, RowRandom(0, np.arange(300))).arrays()
    names = ("input_ids", "decoder_input_ids", "labels")
    found = zip(*(arrays[name].tolist() for name in names), strict=True)
    assert tuple(wanted) in found


def test_every_division_into_spans_is_alike():
    """Four hidden tokens in two spans: 1 + 3, 2 + 2 and 3 + 1, each a third of the time."""
    rows, count = make_rows(1, 11), 3000
    rows = RowBatch(np.repeat(rows.input_ids, count, 0), np.full(count, 11))
    objective = objective_of(probability=0.36, mean_span=2.0)
    batch = objective.prepare(rows, RowRandom(5, np.arange(count)))
    assert batch.labels is not None
    sizes = Counter(len(pieces(row.tolist())[FIRST]) for row in batch.labels)
    starts = Counter(len(pieces(row.tolist())[-1]) for row in batch.input_ids)
    for size in (1, 2, 3):
        assert abs(sizes[size] - count / 3) < 5 * math.sqrt(count * 2 / 9)
    # Seven kept tokens in two spans, each of 1 to 6.
    assert sorted(starts) == [1, 2, 3, 4, 5, 6]
    assert all(abs(starts[n] - count / 6) < 5 * math.sqrt(count * 5 / 36) for n in starts)


def test_short_rows_are_padded_and_a_single_token_asks_nothing():
    rows = make_rows(4, 31, [31, 20, 2, 1])
    batch = objective_of().prepare(rows, RowRandom(0, np.arange(4)))
    assert batch.attention_mask is not None
    assert batch.labels is not None
    for row, length in enumerate((31, 20, 2)):
        inputs, targets = objective_of().lengths(length)
        assert batch.attention_mask[row].sum() == inputs
        assert (batch.labels[row] != NO_LOSS).sum() == targets
        assert (batch.input_ids[row, inputs:] == PAD).all()
    assert (batch.labels[3] == NO_LOSS).all()
    assert batch.input_ids[3, :2].tolist() == [rows.input_ids[3, 0], END]


def test_the_noise_of_a_row_is_its_own():
    rows, positions = make_rows(5, 67), np.array([8, 2**40, 3, 0, 77])
    whole = objective_of().prepare(rows, RowRandom(1, positions))
    assert whole.labels is not None
    for row in (4, 1):
        alone = RowBatch(rows.input_ids[row : row + 1], rows.lengths[row : row + 1])
        single = objective_of().prepare(alone, RowRandom(1, positions[row : row + 1]))
        assert (single.input_ids[0] == whole.input_ids[row]).all()
        assert single.labels is not None
        assert (single.labels[0] == whole.labels[row]).all()
    other = objective_of().prepare(rows, RowRandom(2, positions))
    assert (other.input_ids != whole.input_ids).any()


def test_more_spans_than_sentinels_are_refused():
    with pytest.raises(TriviumError, match="only 5 sentinels"):
        objective_of(sentinels=SENTINELS[:5]).prepare(make_rows(2, 128), RowRandom(0, [0, 1]))


def test_the_loss_is_the_cross_entropy_of_the_targets():
    model, generator = small_model("t5"), np.random.default_rng(0)
    rows = RowBatch(generator.integers(20, 43, (5, 23)), np.array([23, 17, 5, 2, 1]))
    batch = objective_of(sentinels=SENTINELS[:9]).prepare(rows, RowRandom(0, np.arange(5)))
    loss = objective_of().loss(model, to_device(batch, torch.device("cpu")))
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
    assert loss.count == batch.num_labels
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-5)
