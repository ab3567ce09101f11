from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from trivium.data import Batch


def test_micro_batches_add_up():
    ids = np.arange(7 * 5).reshape(7, 5)
    labels = np.where(ids % 3 == 0, ids, -100)
    batch = Batch(input_ids=ids, labels=labels)
    parts = [batch.rows(start, start + 2) for start in range(0, 7, 2)]
    assert [part.num_rows for part in parts] == [2, 2, 2, 1]
    assert sum(part.num_labels for part in parts) == batch.num_labels == 12
    assert np.array_equal(np.concatenate([part.input_ids for part in parts]), ids)
    assert parts[0].attention_mask is None
    assert list(parts[0].arrays()) == ["input_ids", "labels"]


def test_batch_is_frozen_and_whole():
    batch = Batch(input_ids=np.zeros((3, 2), dtype=np.int64))
    assert batch.num_labels == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.labels = batch.input_ids  # type: ignore[misc]
    with pytest.raises(AssertionError, match="labels"):
        Batch(input_ids=batch.input_ids, labels=np.zeros((2, 2)))
