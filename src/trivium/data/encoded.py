"""Labelled examples as numbers: sequences of different lengths, padded when they are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.batch import NO_LOSS, Batch

_FILLING = {"labels": NO_LOSS}
_PADDED_WITH_TOKENS = ("input_ids", "decoder_input_ids")


class Examples:
    """Encoded examples, by the field of `Batch` they become.

    Args:
        sequences: for every field of positions (`input_ids`, `labels`, ...) one list of numbers an
            example; `input_ids` must be there.
        text_labels: what is asked of whole texts, [N] or [N, L]; None: nothing.
        pad_id: fills up token ids; labels are filled up with -100, other fields with 0.
    """

    def __init__(
        self,
        sequences: Mapping[str, Sequence[Sequence[int]]],
        *,
        text_labels: ArrayLike | None = None,
        pad_id: int = 0,
    ) -> None:
        self.pad_id = pad_id
        self._ragged = {name: _Ragged(rows) for name, rows in sequences.items()}
        self._text_labels = None if text_labels is None else np.asarray(text_labels)
        for name, ragged in self._ragged.items():
            # Labels are those of what is written, if something is.
            told = name == "labels" and "decoder_input_ids" in self._ragged
            like = "decoder_input_ids" if told or name.startswith("decoder_") else "input_ids"
            alike = np.array_equal(ragged.sizes, self._ragged[like].sizes)
            assert len(ragged.sizes) == len(self), f"{name} has another number of examples"
            assert alike, f"{name} and {like} differ in length"
        assert self._text_labels is None or len(self._text_labels) == len(self)
        # What an example costs: its tokens, those of the decoder included.
        asked = [r.sizes for name, r in self._ragged.items() if name in _PADDED_WITH_TOKENS]
        self.lengths: NDArray[np.int64] = np.sum(asked, axis=0)

    def __len__(self) -> int:
        return len(self._ragged["input_ids"].sizes)

    @property
    def num_tokens(self) -> int:
        """Tokens of all examples."""
        return int(self.lengths.sum())

    def take(self, indices: ArrayLike) -> Batch:
        """The examples numbered `indices`, in that order, padded on the right to the longest."""
        numbers = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        arrays: dict[str, NDArray] = {}
        for name, ragged in self._ragged.items():
            fill = self.pad_id if name in _PADDED_WITH_TOKENS else _FILLING.get(name, 0)
            arrays[name] = ragged.padded(numbers, fill)
        sizes = self._ragged["input_ids"].sizes[numbers]
        if "document_ids" not in arrays and len(sizes) and sizes.min() < sizes.max():
            real = np.arange(sizes.max()) < sizes[:, None]
            arrays["attention_mask"] = real.astype(np.int64)
        if self._text_labels is not None:
            arrays["text_labels"] = self._text_labels[numbers]
        return Batch(**arrays)


class _Ragged:
    """Lists of different lengths, one after another."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.sizes = np.array([len(row) for row in rows], dtype=np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.sizes)))[:-1].astype(np.int64)
        self.values = np.empty(int(self.sizes.sum()), dtype=np.int32)
        for start, row in zip(self.starts.tolist(), rows):
            self.values[start : start + len(row)] = row

    def padded(self, numbers: NDArray[np.int64], fill: int) -> NDArray[np.int64]:
        """int64 [B, T], T that of the longest row taken."""
        sizes = self.sizes[numbers]
        columns = np.arange(sizes.max(initial=0))
        real = columns < sizes[:, None]
        found = np.full(real.shape, fill, dtype=np.int64)
        found[real] = self.values[(self.starts[numbers][:, None] + columns)[real]]
        return found
