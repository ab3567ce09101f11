"""Data pipeline: sources, documents or records, token shards, rows and batches.

Nothing here imports torch.
"""

from __future__ import annotations

from trivium.data.batch import IGNORE_INDEX as IGNORE_INDEX
from trivium.data.batch import Batch as Batch
from trivium.data.batch import RowBatch as RowBatch
from trivium.data.documents import Document as Document
from trivium.data.documents import ReadOptions as ReadOptions
from trivium.data.documents import read_documents as read_documents
from trivium.data.encoded import EncodedExamples as EncodedExamples
from trivium.data.records import Record as Record
from trivium.data.records import read_records as read_records
from trivium.data.row_order import RowRandom as RowRandom
from trivium.data.row_order import derived_seed as derived_seed
from trivium.data.row_order import shuffled_rows as shuffled_rows
from trivium.data.row_order import shuffled_rows_from as shuffled_rows_from
from trivium.data.rows import Rows as Rows
from trivium.data.shards import Shards as Shards
from trivium.data.shards import ShardSplit as ShardSplit
