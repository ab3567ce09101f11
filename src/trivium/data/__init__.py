"""Data: text sources -> documents -> token shards -> order -> `Batch`. Numpy only, no torch."""

from __future__ import annotations

from trivium.data.batch import NO_LOSS, Batch
from trivium.data.encoded import Examples
from trivium.data.order import RowRandom, permutation, rows_between, rows_of_step
from trivium.data.rows import RowBatch, Rows
from trivium.data.shards import Shards, ShardSplit

__all__ = [
    "NO_LOSS",
    "Batch",
    "Examples",
    "RowBatch",
    "RowRandom",
    "Rows",
    "ShardSplit",
    "Shards",
    "permutation",
    "rows_between",
    "rows_of_step",
]
