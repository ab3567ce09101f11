"""Rows of text from token shards: CPU time for a step of a million tokens, by number of shards.

The rows are random, and 128 tokens long; documents have 400 tokens on average.

    python benchmarks/rows.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from side_by_side import machine

from trivium.data import shards
from trivium.data.rows import Rows

TOKENS, LENGTH, ROWS, VOCABULARY = 1 << 24, 128, 8192, 30_000


def write_split(folder: Path, count: int) -> shards.ShardSplit:
    """Write random tokens in `count` shards. Returns them as one split."""
    rng, files, size = np.random.default_rng(0), [], TOKENS // count
    for index in range(count):
        ids = rng.integers(0, VOCABULARY, size).astype("<u2")
        ids.tofile(shards.shard_path(folder, shards.TRAIN, index))
        ends = np.unique([0, size, *rng.integers(0, size, size // 400)]).astype(np.int64)
        np.save(shards.index_path(folder, shards.TRAIN, index), ends)
        files.append(shards.ShardFile(size, len(ends) - 1, "", ""))
    np.save(shards.counts_path(folder, shards.TRAIN), np.zeros(VOCABULARY, np.int64))
    documents = sum(file.documents for file in files)
    info = shards.SplitInfo(documents, TOKENS, 0, 0, 0, (), tuple(files))
    splits = {shards.TRAIN: info}
    manifest = shards.Manifest("", "", VOCABULARY, "uint16", (), (), (), {}, splits, ())
    return shards.ShardSplit(folder, shards.TRAIN, manifest)


def main() -> None:
    """Print a table: CPU seconds for tokens alone, and with the documents of every token."""
    print(machine() + "\n\n| shards | tokens | with documents |\n|---|---|---|")
    for count in (1, 128):
        with tempfile.TemporaryDirectory() as name:
            rows = Rows(write_split(Path(name), count), LENGTH)
            indices = np.random.default_rng(1).permutation(len(rows))[:ROWS]
            cells = []
            for with_documents in (False, True):
                seconds = []
                for _ in range(5):
                    begin = time.process_time()
                    rows.take(indices, with_documents=with_documents)
                    seconds.append(time.process_time() - begin)
                cells.append(f"{min(seconds):.3f} s")
            print(f"| {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
