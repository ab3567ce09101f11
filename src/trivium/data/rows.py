"""Rows of fixed length out of token shards."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.batch import Ints, RowBatch
from trivium.data.shards import ShardSplit
from trivium.errors import DataError

Packing = Literal["pack", "truncate"]


class TokenArray:
    """The token ids of an array, or of a memory map, as a split of one document."""

    name, num_documents = "array", 1
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()

    def __init__(self, ids: NDArray[Any]) -> None:
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise DataError(
                f"Token ids are one long row of integers, not {ids.dtype} of shape {ids.shape}."
            )
        self.ids, self.num_tokens = ids, len(ids)

    def tokens_at(self, positions: Ints) -> Ints:
        """As of `ShardSplit`."""
        return self.ids[positions].astype(np.int64)

    def documents_at(self, positions: Ints) -> Ints:
        """As of `ShardSplit`."""
        return np.zeros_like(positions)

    def document_bounds(self, documents: Ints) -> tuple[Ints, Ints]:
        """As of `ShardSplit`."""
        return np.zeros_like(documents), np.full_like(documents, self.num_tokens)


class Rows:
    """A split, or an array of token ids, seen as rows of `length` tokens.

    `packing="pack"`: documents, each with its prefix and suffix, are concatenated and cut every
    `length` tokens; the last partial row is dropped. `packing="truncate"`: one row per document,
    cut to `length`; `take` pads with `pad_id` to the longest row taken. `keep_suffix`: the suffix
    replaces the last tokens of a row that is cut. A decoder would learn from it to stop there.

    Raises DataError where the split does not fill one row.

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
        """The rows numbered `indices` (each in 0..len-1), in that order, repeats allowed."""
        numbers = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"rows are numbered 0 to {len(self) - 1}")
        if self.packing == "pack":
            return self._take_packed(numbers, with_documents)
        return self._take_documents(numbers, with_documents)

    def _take_packed(self, numbers: Ints, with_documents: bool) -> RowBatch:
        positions = numbers[:, None] * self.length + np.arange(self.length)
        lengths = np.full(len(numbers), self.length, dtype=np.int64)
        ids = self.split.tokens_at(positions)
        if not with_documents:
            return RowBatch(ids, lengths)
        documents = self.split.documents_at(positions)
        return RowBatch(ids, lengths, documents - documents[:, :1] + 1, documents[:, 0])

    def _take_documents(self, numbers: Ints, with_documents: bool) -> RowBatch:
        starts, stops = self.split.document_bounds(numbers)
        lengths = np.minimum(stops - starts, self.length)
        columns = np.arange(lengths.max(initial=0))
        real = columns < lengths[:, None]
        positions = np.where(real, starts[:, None] + columns, starts[:, None])
        ids = np.where(real, self.split.tokens_at(positions), self.pad_id)
        suffix = self.split.suffix_ids
        truncated = stops - starts > self.length
        if suffix and self.keep_suffix and truncated.any():
            ids[truncated, self.length - len(suffix) : self.length] = suffix
        if not with_documents:
            return RowBatch(ids, lengths)
        return RowBatch(ids, lengths, real.astype(np.int64), numbers)
