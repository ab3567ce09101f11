"""Data: sources -> documents or records -> token shards -> rows -> `Batch`. No torch."""

from __future__ import annotations

from trivium.data.batch import IGNORE_INDEX, Batch, RowBatch
from trivium.data.documents import Document, ReadOptions, read_documents
from trivium.data.encoded import EncodedExamples
from trivium.data.records import Record, read_records
from trivium.data.row_order import RowRandom, derived_seed, permutation, rows_of_step
from trivium.data.rows import Rows
from trivium.data.shards import Shards, ShardSplit

__all__ = [
    "IGNORE_INDEX",
    "Batch",
    "Document",
    "EncodedExamples",
    "ReadOptions",
    "Record",
    "RowBatch",
    "RowRandom",
    "Rows",
    "ShardSplit",
    "Shards",
    "derived_seed",
    "permutation",
    "read_documents",
    "read_records",
    "rows_of_step",
]
