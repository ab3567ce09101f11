from __future__ import annotations

import numpy as np
import pytest

from trivium.data import Rows, encode_tasks, prepare
from trivium.errors import DataError


@pytest.fixture(scope="module", params=[997, 1 << 20], ids=["many shards", "one shard"])
def split(request, tmp_path_factory, documents, tokenizer):
    folder = tmp_path_factory.mktemp("rows")
    path = folder / "a.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_tasks, "SHARD_BYTES", request.param)
        patch.setattr(encode_tasks, "BATCH_CHARACTERS", request.param)
        shards = prepare.prepare(path, tokenizer, folder / "out")
    assert (len(shards.manifest.splits["train"].files) > 9) == (request.param == 997)
    split = shards.split("train")
    whole = [split.document(n) for n in range(split.num_documents)]
    return split, whole


def test_packed_rows_are_the_concatenated_documents(split):
    for length in (1, 7, 31, 101):
        check_packed_rows(*split, length)


def check_packed_rows(split, whole, length):
    rows = Rows(split, length)
    flat = np.concatenate(whole)
    assert len(rows) == len(flat) // length
    everything = rows.take(np.arange(len(rows)), with_documents=True)
    assert everything.num_rows == len(rows)
    assert everything.input_ids.dtype == np.int64
    assert np.array_equal(everything.input_ids.ravel(), flat[: len(rows) * length])
    assert everything.lengths.tolist() == [length] * len(rows)
    numbers = np.concatenate([np.full(len(ids), n) for n, ids in enumerate(whole)])
    numbers = numbers[: len(rows) * length].reshape(-1, length)
    assert np.array_equal(everything.document_ids, numbers - numbers[:, :1] + 1)
    assert np.array_equal(everything.first_documents, numbers[:, 0])
    chosen = np.array([len(rows) - 1, 0, 3, 3])
    some = rows.take(chosen)
    assert some.document_ids is None
    assert np.array_equal(some.input_ids, everything.input_ids[chosen])


def test_truncated_rows_are_one_per_document(split):
    for length in (3, 11, 101):
        check_truncated_rows(*split, length)


def check_truncated_rows(split, whole, length):
    rows = Rows(split, length, "truncate", pad_id=17)
    assert len(rows) == len(whole)
    chosen = np.array([5, 400, 0, len(whole) - 1])
    taken = rows.take(chosen, with_documents=True)
    width = min(length, max(len(whole[n]) for n in chosen))
    assert taken.input_ids.shape == (4, width)
    assert taken.document_ids is not None
    assert taken.first_documents.tolist() == chosen.tolist()
    for row, number in enumerate(chosen):
        ids = whole[number].tolist()
        if len(ids) > length:
            ids = [*ids[: length - 1], 3]
        assert taken.input_ids[row].tolist() == ids + [17] * (width - len(ids))
        assert taken.lengths[row] == len(ids)
        assert taken.document_ids[row].tolist() == [1] * len(ids) + [0] * (width - len(ids))


def test_too_little_text_says_how_much_there_is(split):
    split, whole = split
    tokens = sum(map(len, whole))
    assert len(Rows(split, tokens)) == 1
    message = rf'"train" has {tokens} tokens in {len(whole)} documents.* row of {tokens + 1} tokens'
    with pytest.raises(DataError, match=message):
        Rows(split, tokens + 1)
    with pytest.raises(DataError, match="row of 2 tokens is too short"):
        Rows(split, 2, "truncate")
    with pytest.raises(DataError, match="row of 0 tokens is too short"):
        Rows(split, 0)
    with pytest.raises(DataError, match='"pack" or "truncate", not "cut"'):
        Rows(split, 5, "cut")  # type: ignore[arg-type]


def test_rows_out_of_range(split):
    for packing in ("pack", "truncate"):
        for index in (-1, 10**6):
            with pytest.raises(IndexError, match="rows are numbered 0 to"):
                Rows(split[0], 7, packing).take([0, index])


def test_rows_of_an_array_are_those_of_a_split_of_one_document():
    ids = np.arange(100, 143, dtype=np.uint16)
    rows = Rows(ids, 7)
    assert len(rows) == 6
    batch = rows.take([5, 0], with_documents=True)
    assert batch.input_ids.tolist() == [[*range(135, 142)], [*range(100, 107)]]
    assert batch.input_ids.dtype == np.int64
    assert (batch.document_ids == 1).all()
    assert Rows(ids, 50, "truncate").take([0]).input_ids.tolist() == [[*range(100, 143)]]
    with pytest.raises(DataError, match="1-D array of integers, not float64 of shape"):
        Rows(np.zeros((2, 3)), 2)
