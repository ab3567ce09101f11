"""Encoded examples come back as they went in, padded on the right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.data import IGNORE_INDEX, EncodedExamples

ROWS = [[5, 7, 11], [2], [3, 4, 5, 6, 7], [], [9, 9]]
LABELS = [[7, 11, IGNORE_INDEX], [IGNORE_INDEX], [4, 5, 6, 7, IGNORE_INDEX], [], [9, IGNORE_INDEX]]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99_999), max_size=7), min_size=1, max_size=11), st.data())
def test_every_row_comes_back_padded_on_the_right(rows, data):
    examples = EncodedExamples({"input_ids": rows, "labels": rows}, pad_id=13)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=13))
    batch = examples.take(chosen)
    longest = max(len(rows[n]) for n in chosen)
    assert batch.input_ids.tolist() == [rows[n] + [13] * (longest - len(rows[n])) for n in chosen]
    assert batch.labels.tolist() == [
        rows[n] + [IGNORE_INDEX] * (longest - len(rows[n])) for n in chosen
    ]
    assert batch.input_ids.dtype == np.int64
    if all(len(rows[n]) == longest for n in chosen):
        assert batch.attention_mask is None
    else:
        real = [[int(t < len(rows[n])) for t in range(longest)] for n in chosen]
        assert batch.attention_mask.tolist() == real


def test_examples_of_many_chunks_come_back_from_files(tmp_path):
    labels = [0.5, 1.5, -2.0, 0.0, 9.0]
    whole = EncodedExamples(
        {"input_ids": ROWS, "labels": LABELS}, sequence_labels=labels, pad_id=13
    )
    chunks = (
        EncodedExamples(
            {"input_ids": ROWS[one], "labels": LABELS[one]}, sequence_labels=labels[one], pad_id=13
        )
        for one in (slice(0, 3), slice(3, 4), slice(4, 5))
    )
    EncodedExamples.store(chunks, tmp_path / "many")
    stored = EncodedExamples.open(tmp_path / "many")
    for ragged in stored._ragged.values():
        assert all(isinstance(one, np.memmap) for one in (ragged.values, ragged.sizes))
        assert isinstance(ragged.starts, np.memmap)
    assert isinstance(stored.lengths, np.memmap)
    assert (stored.largest_id("input_ids"), stored.largest_id("decoder_input_ids")) == (11, 0)
    assert stored.lengths.tolist() == whole.lengths.tolist()
    one, other = stored.take([2, 0, 3]), whole.take([2, 0, 3])
    for name in ("input_ids", "labels", "lengths", "sequence_labels"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    EncodedExamples.store([EncodedExamples({"input_ids": [[], []]})], tmp_path / "none")
    assert EncodedExamples.open(tmp_path / "none").take([1]).input_ids.shape == (1, 0)


def test_lengths_and_tokens():
    examples = EncodedExamples({"input_ids": ROWS, "labels": LABELS})
    assert len(examples) == 5
    assert examples.lengths.tolist() == [3, 1, 5, 0, 2]
    assert examples.num_tokens == 11
    batch = examples.take([2, 0])
    assert batch.lengths.tolist() == [5, 3]
    assert batch.num_tokens == 8
    assert batch.to_batch().num_labels == 6
    assert batch.attention_mask.tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert examples.take(1).input_ids.tolist() == [[2]]


def test_a_decoder_has_lengths_of_its_own():
    targets = [[1, 2], [1, 2, 3, 4], [1], [1, 2, 3], [1]]
    examples = EncodedExamples(
        {"input_ids": ROWS, "decoder_input_ids": targets, "labels": targets}, pad_id=8
    )
    assert examples.lengths.tolist() == [5, 5, 6, 3, 3]
    batch = examples.take([0, 1])
    assert batch.input_ids.tolist() == [[5, 7, 11], [2, 8, 8]]
    assert batch.decoder_input_ids.tolist() == [[1, 2, 8, 8], [1, 2, 3, 4]]
    assert batch.labels.tolist() == [[1, 2, IGNORE_INDEX, IGNORE_INDEX], [1, 2, 3, 4]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.decoder_lengths.tolist() == [2, 4]
    assert batch.num_tokens == 10
    assert batch.slice_rows(1, 2).decoder_input_ids.tolist() == [[1, 2, 3, 4]]
    assert list(batch.to_batch().arrays()) == [
        *("input_ids", "attention_mask", "decoder_input_ids", "labels")
    ]


def test_packed_documents_need_no_mask():
    documents = [[1, 1, 2], [1], [1, 1, 1, 2, 2], [], [1, 2]]
    examples = EncodedExamples(
        {"input_ids": ROWS, "document_ids": documents, "token_type_ids": documents}
    )
    batch = examples.take([0, 4])
    assert batch.attention_mask is None
    assert batch.document_ids.tolist() == [[1, 1, 2], [1, 2, 0]]
    assert batch.token_type_ids.tolist() == [[1, 1, 2], [1, 2, 0]]


def test_sequence_labels():
    for labels in (
        [3, 1, 4, 1, 5],
        [0.5, 1.5, -2.0, 0.0, 9.0],
        [[1, 0, 1], [0, 0, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1]],
    ):
        batch = EncodedExamples({"input_ids": ROWS}, sequence_labels=labels).take([4, 2, 2])
        assert batch.sequence_labels.tolist() == [labels[4], labels[2], labels[2]]
        assert batch.labels is None


def test_fields_of_different_lengths():
    with pytest.raises(AssertionError, match="labels and input_ids differ"):
        EncodedExamples({"input_ids": ROWS, "labels": [[1]] * 5})
    with pytest.raises(AssertionError, match="labels and decoder_input_ids differ"):
        EncodedExamples({"input_ids": ROWS, "decoder_input_ids": [[1]] * 5, "labels": ROWS})
    with pytest.raises(AssertionError):
        EncodedExamples({"input_ids": ROWS}, sequence_labels=[1, 2])
