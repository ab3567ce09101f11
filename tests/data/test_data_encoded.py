"""Encoded examples: what is taken is what was given, padded and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.data import NO_LOSS, Examples

ROWS = [[5, 7, 11], [2], [3, 4, 5, 6, 7], [], [9, 9]]
LABELS = [[7, 11, NO_LOSS], [NO_LOSS], [4, 5, 6, 7, NO_LOSS], [], [9, NO_LOSS]]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 99_999), max_size=7), min_size=1, max_size=11),
    st.data(),
)
def test_every_row_comes_back_padded_on_the_right(rows, data):
    examples = Examples({"input_ids": rows, "labels": rows}, pad_id=13)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=13))
    batch = examples.take(chosen)
    longest = max(len(rows[n]) for n in chosen)
    assert batch.input_ids.tolist() == [rows[n] + [13] * (longest - len(rows[n])) for n in chosen]
    assert batch.labels.tolist() == [rows[n] + [NO_LOSS] * (longest - len(rows[n])) for n in chosen]
    assert batch.input_ids.dtype == np.int64
    if all(len(rows[n]) == longest for n in chosen):
        assert batch.attention_mask is None
    else:
        real = [[int(t < len(rows[n])) for t in range(longest)] for n in chosen]
        assert batch.attention_mask.tolist() == real


def test_lengths_and_tokens():
    examples = Examples({"input_ids": ROWS, "labels": LABELS})
    assert len(examples) == 5
    assert examples.lengths.tolist() == [3, 1, 5, 0, 2]
    assert examples.num_tokens == 11
    batch = examples.take([2, 0])
    assert batch.num_labels == 6
    assert batch.attention_mask.tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert examples.take(1).input_ids.tolist() == [[2]]


def test_a_decoder_has_lengths_of_its_own():
    written = [[1, 2], [1, 2, 3, 4], [1], [1, 2, 3], [1]]
    examples = Examples(
        {"input_ids": ROWS, "decoder_input_ids": written, "labels": written}, pad_id=8
    )
    assert examples.lengths.tolist() == [5, 5, 6, 3, 3]
    batch = examples.take([0, 1])
    assert batch.input_ids.tolist() == [[5, 7, 11], [2, 8, 8]]
    assert batch.decoder_input_ids.tolist() == [[1, 2, 8, 8], [1, 2, 3, 4]]
    assert batch.labels.tolist() == [[1, 2, NO_LOSS, NO_LOSS], [1, 2, 3, 4]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.decoder_attention_mask is None


def test_packed_documents_need_no_mask():
    documents = [[1, 1, 2], [1], [1, 1, 1, 2, 2], [], [1, 2]]
    examples = Examples({"input_ids": ROWS, "document_ids": documents, "token_type_ids": documents})
    batch = examples.take([0, 4])
    assert batch.attention_mask is None
    assert batch.document_ids.tolist() == [[1, 1, 2], [1, 2, 0]]
    assert batch.token_type_ids.tolist() == [[1, 1, 2], [1, 2, 0]]


@pytest.mark.parametrize(
    "labels",
    [[3, 1, 4, 1, 5], [0.5, 1.5, -2.0, 0.0, 9.0], [[1, 0, 1], [0, 0, 0]] * 2 + [[1, 1, 1]]],
)
def test_labels_of_texts_go_along(labels):
    batch = Examples({"input_ids": ROWS}, text_labels=labels).take([4, 2, 2])
    assert batch.text_labels.tolist() == [labels[4], labels[2], labels[2]]
    assert batch.labels is None


def test_what_does_not_belong_together():
    with pytest.raises(AssertionError, match="labels and input_ids differ"):
        Examples({"input_ids": ROWS, "labels": [[1]] * 5})
    with pytest.raises(AssertionError, match="labels and decoder_input_ids differ"):
        Examples({"input_ids": ROWS, "decoder_input_ids": [[1]] * 5, "labels": ROWS})
    with pytest.raises(AssertionError):
        Examples({"input_ids": ROWS}, text_labels=[1, 2])
