"""Rows of fixed length out of token shards."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.shards import ShardSplit
from trivium.errors import DataError

Mode = Literal["pack", "truncate"]


@dataclasses.dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows: what `objective.prepare` starts from.

    `input_ids` int64 [B, T]; `lengths` int64 [B], the real tokens of each row (the rest is
    padding); `document_ids` int64 [B, T], numbering the documents of a row from 1 with 0 for
    padding, or None where they were not asked for; `first_documents` int64 [B] says with them which
    document of the split each row begins with.
    """

    input_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    document_ids: NDArray[np.int64] | None = None
    first_documents: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        """Rows B."""
        return len(self.input_ids)


class Rows:
    """A split seen as rows of `length` tokens.

    `mode="pack"`: the documents joined, each with its prefix and suffix, and cut every `length`
    tokens; only the last partial row is dropped. `mode="truncate"`: one row a document, cut to
    `length` with its suffix kept; `take` pads with `pad_id` to the longest row taken.

    Raises DataError where the split does not fill one row.
    """

    def __init__(
        self, split: ShardSplit, length: int, mode: Mode = "pack", *, pad_id: int = 0
    ) -> None:
        if mode not in ("pack", "truncate"):
            raise DataError(f'Rows have mode "pack" or "truncate", not "{mode}".')
        self.split = split
        self.length = length
        self.mode: Mode = mode
        self.pad_id = pad_id
        self._check()

    def _check(self) -> None:
        """Raise DataError where no row can be made."""
        affixes = len(self.split.prefix_ids) + len(self.split.suffix_ids)
        if self.length <= (affixes if self.mode == "truncate" else 0):
            raise DataError(
                f"A row of {self.length} tokens is too short: a document begins and ends with "
                f"{affixes} special tokens. Give a larger length."
            )
        if len(self) == 0:
            count = f"{self.split.num_tokens} tokens in {self.split.num_documents} documents"
            raise DataError(
                f'The split "{self.split.name}" has {count}, less than one row of {self.length} '
                'tokens. Add text, give a shorter length, or use mode "truncate" (one row a '
                "document)."
            )

    def __len__(self) -> int:
        if self.mode == "truncate":
            return self.split.num_documents
        return self.split.num_tokens // self.length

    def take(self, indices: ArrayLike, *, with_documents: bool = False) -> RowBatch:
        """The rows numbered `indices` (each in 0..len-1), in that order, repeats allowed."""
        numbers = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"rows are numbered 0 to {len(self) - 1}")
        if self.mode == "pack":
            return self._take_packed(numbers, with_documents)
        return self._take_documents(numbers, with_documents)

    def _take_packed(self, numbers: NDArray[np.int64], with_documents: bool) -> RowBatch:
        positions = numbers[:, None] * self.length + np.arange(self.length)
        lengths = np.full(len(numbers), self.length, dtype=np.int64)
        ids = self.split.tokens_at(positions)
        if not with_documents:
            return RowBatch(ids, lengths)
        documents = self.split.documents_at(positions)
        return RowBatch(ids, lengths, documents - documents[:, :1] + 1, documents[:, 0])

    def _take_documents(self, numbers: NDArray[np.int64], with_documents: bool) -> RowBatch:
        starts, stops = self.split.document_bounds(numbers)
        lengths = np.minimum(stops - starts, self.length)
        columns = np.arange(lengths.max(initial=0))
        real = columns < lengths[:, None]
        positions = np.where(real, starts[:, None] + columns, starts[:, None])
        ids = np.where(real, self.split.tokens_at(positions), self.pad_id)
        suffix = self.split.suffix_ids
        cut = stops - starts > self.length
        if suffix and cut.any():
            ids[cut, self.length - len(suffix) : self.length] = suffix
        if not with_documents:
            return RowBatch(ids, lengths)
        return RowBatch(ids, lengths, real.astype(np.int64), numbers)
