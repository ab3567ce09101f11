"""Every file of a folder of shards is compared with its checksum."""

from __future__ import annotations

import numpy as np
import pytest

from trivium.data.prepare import prepare
from trivium.data.shards import Shards
from trivium.errors import DataError


def test_every_file_of_shards_is_verified(tmp_path, documents, tokenizer):
    """Also an index that still rises from 0 to the end, and a token that is in the vocabulary."""
    (tmp_path / "a.txt").write_text("\n\n".join(documents), encoding="utf-8")
    shards = prepare([tmp_path / "a.txt"], tokenizer, tmp_path / "out")
    shards.verify()
    offsets = np.load(index := tmp_path / "out" / "train-00000.idx.npy")
    tokens = np.fromfile(ids := tmp_path / "out" / "train-00000.bin", shards.manifest.dtype)
    moved, other = offsets.copy(), tokens.copy()
    moved[7] += offsets[8] > offsets[7]
    moved[7] -= offsets[8] == offsets[7]
    other[3], other[4] = tokens[4], tokens[3]
    for path, save in ((index, lambda: np.save(index, moved)), (ids, lambda: other.tofile(ids))):
        before = path.read_bytes()
        save()
        assert path.read_bytes() != before
        with pytest.raises(DataError, match=f"{path.name} has changed"):
            Shards.open(tmp_path / "out").verify()
        path.write_bytes(before)
    for part in range(2):
        shards.verify(part, 2)
