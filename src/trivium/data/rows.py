"""Rows of fixed length, cut from the token shards of a split."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.batch import Ints, RowBatch
from trivium.data.shards import ShardSplit
from trivium.errors import DataError

Packing = Literal["pack", "truncate"]


class TokenArray:
    """A split with a single document, backed by an array of token ids.

    It has the interface of `ShardSplit`.
    """

    name, num_documents = "array", 1
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()

    def __init__(self, ids: NDArray[Any]) -> None:
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise DataError(
                f"Token ids are a 1-D array of integers, not {ids.dtype} of shape {ids.shape}."
            )
        self.ids, self.num_tokens = ids, len(ids)

    def rows_at(self, starts: Ints, lengths: Ints, *, pad_id: int = 0) -> Ints:
        """Return rows of consecutive tokens, int64 [B, T], as `ShardSplit.rows_at` does."""
        rows = np.full((len(starts), lengths.max(initial=0)), pad_id, dtype=np.int64)
        for row, start, length in zip(rows, starts.tolist(), lengths.tolist()):
            row[:length] = self.ids[start : start + length]
        return rows

    def documents_at(self, starts: Ints, length: int) -> Ints:
        """Return the document index of every token in B rows: zeros, int64 [B, length]."""
        return np.zeros((len(starts), length), dtype=np.int64)

    def document_bounds(self, documents: Ints) -> tuple[Ints, Ints]:
        """Return the start and stop positions of documents.

        Since there is only one document, they are always 0 and the length of the array.
        """
        return np.zeros_like(documents), np.full_like(documents, self.num_tokens)


class Rows:
    """Rows of `length` tokens, made from the documents of a split or from an array of token ids.

    Args:
        split: the split, or a one-dimensional array of token ids.
        length: the number of tokens per row.
        packing: how documents are arranged in rows. "pack" concatenates the documents, with their
            prefix and suffix tokens, and splits the result every `length` tokens; the last,
            incomplete row is dropped. "truncate" makes one row per document, truncated to `length`
            tokens.
        pad_id: the id of the padding token.
        keep_suffix: whether a truncated document still ends with the suffix tokens, which replace
            its last tokens. Use False for decoders: they would learn to stop there.

    Raises DataError if the split has too few tokens for one row.

    >>> Rows(np.arange(10), length=3).take([2, 0]).input_ids
    array([[6, 7, 8],
           [0, 1, 2]])
    """

    def __init__(
        self,
        split: ShardSplit | NDArray[Any],
        length: int,
        packing: Packing = "pack",
        *,
        pad_id: int = 0,
        keep_suffix: bool = True,
    ) -> None:
        if packing not in ("pack", "truncate"):
            raise DataError(f'packing is "pack" or "truncate", not "{packing}".')
        self.split = source = TokenArray(split) if isinstance(split, np.ndarray) else split
        self.length = length
        self.packing: Packing = packing
        self.pad_id, self.keep_suffix = pad_id, keep_suffix
        num_special = len(source.prefix_ids) + len(source.suffix_ids)
        if length <= (num_special if packing == "truncate" else 0):
            raise DataError(
                f"A row of {length} tokens is too short: a document begins and ends with "
                f"{num_special} special tokens. Choose a larger length."
            )
        if len(self) == 0:
            count = f"{source.num_tokens} tokens in {source.num_documents} documents"
            raise DataError(
                f'The split "{source.name}" has {count}, less than one row of {length} '
                'tokens. Add text, choose a shorter length, or packing "truncate" (one row per '
                "document)."
            )

    def __len__(self) -> int:
        if self.packing == "truncate":
            return self.split.num_documents
        return self.split.num_tokens // self.length

    def take(self, indices: ArrayLike, *, with_documents: bool = False) -> RowBatch:
        """Return the rows with the given indices, in this order. An index may occur repeatedly.

        With packing "truncate", rows are padded to the length of the longest returned row. If
        `with_documents` is True, the result also contains `document_ids` and `first_documents`.
        """
        row_indices = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        if len(row_indices) and not (row_indices.min() >= 0 and row_indices.max() < len(self)):
            raise IndexError(f"rows are numbered 0 to {len(self) - 1}")
        if self.packing == "pack":
            return self._take_packed(row_indices, with_documents)
        return self._take_documents(row_indices, with_documents)

    def _take_packed(self, row_indices: Ints, with_documents: bool) -> RowBatch:
        """Return the packed rows with the given indices."""
        starts, lengths = row_indices * self.length, np.full(len(row_indices), self.length)
        ids = self.split.rows_at(starts, lengths)
        if not with_documents:
            return RowBatch(ids, lengths)
        documents = self.split.documents_at(starts, self.length)
        return RowBatch(ids, lengths, documents - documents[:, :1] + 1, documents[:, 0])

    def _take_documents(self, row_indices: Ints, with_documents: bool) -> RowBatch:
        """Return the documents with the given indices, each as one truncated and padded row."""
        starts, stops = self.split.document_bounds(row_indices)
        lengths = np.minimum(stops - starts, self.length)
        ids = self.split.rows_at(starts, lengths, pad_id=self.pad_id)
        is_token = np.arange(ids.shape[1]) < lengths[:, None]
        suffix = self.split.suffix_ids
        truncated = stops - starts > self.length
        if suffix and self.keep_suffix and truncated.any():
            ids[truncated, self.length - len(suffix) : self.length] = suffix
        if not with_documents:
            return RowBatch(ids, lengths)
        return RowBatch(ids, lengths, is_token.astype(np.int64), row_indices)
