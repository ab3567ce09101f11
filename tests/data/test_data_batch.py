from __future__ import annotations

import numpy as np

from trivium.data import Batch


def test_micro_batches_add_up():
    ids = np.arange(7 * 5).reshape(7, 5)
    labels = np.where(ids % 3 == 0, ids, -100)
    batch = Batch(input_ids=ids, labels=labels)
    parts = [batch.slice_rows(start, start + 2) for start in range(0, 7, 2)]
    assert [part.num_rows for part in parts] == [2, 2, 2, 1]
    assert sum(part.num_labels for part in parts) == batch.num_labels == 12
    assert np.array_equal(np.concatenate([part.input_ids for part in parts]), ids)
    assert parts[0].attention_mask is None
    assert list(parts[0].arrays()) == ["input_ids", "labels"]
