"""Labelled examples as token ids: ragged sequences, padded when a batch is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.batch import IGNORE_INDEX, RowBatch

_TOKEN_FIELDS = ("input_ids", "decoder_input_ids")


class EncodedExamples:
    """Encoded examples, by the field of `RowBatch` they become.

    Args:
        sequences: one list of integers per example for every field with positions (`input_ids`,
            which is required, `token_type_ids`, `position_ids`, `document_ids`,
            `decoder_input_ids`, `labels`). `labels` are as long as `decoder_input_ids` where
            there are any, everything else as `input_ids`.
        sequence_labels: labels of whole sequences, [N] or [N, L].
        pad_id: padding of token ids; labels are padded with `IGNORE_INDEX`, other fields with 0.
    """

    def __init__(
        self,
        sequences: Mapping[str, Sequence[Sequence[int]]],
        *,
        sequence_labels: ArrayLike | None = None,
        pad_id: int = 0,
    ) -> None:
        self.pad_id = pad_id
        self._ragged = {name: _Ragged(rows) for name, rows in sequences.items()}
        self._sequence_labels = None if sequence_labels is None else np.asarray(sequence_labels)
        labelled = "decoder_input_ids" if "decoder_input_ids" in sequences else "input_ids"
        for name, ragged in self._ragged.items():
            like = labelled if name in ("decoder_input_ids", "labels") else "input_ids"
            assert len(ragged.sizes) == len(self), f"{name} has another number of examples"
            same = np.array_equal(ragged.sizes, self._ragged[like].sizes)
            assert same, f"{name} and {like} differ in length"
        assert self._sequence_labels is None or len(self._sequence_labels) == len(self)
        sizes = [self._ragged[name].sizes for name in _TOKEN_FIELDS if name in self._ragged]
        self.lengths: NDArray[np.int64] = np.sum(sizes, axis=0)
        """Tokens of each example, those of the decoder included, int64 [N]."""

    def __len__(self) -> int:
        return len(self._ragged["input_ids"].sizes)

    @property
    def num_tokens(self) -> int:
        """Tokens of all examples."""
        return int(self.lengths.sum())

    def take(self, indices: ArrayLike) -> RowBatch:
        """The examples numbered `indices`, in that order, padded on the right to the longest."""
        numbers = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        fills = {**dict.fromkeys(_TOKEN_FIELDS, self.pad_id), "labels": IGNORE_INDEX}
        arrays: dict[str, NDArray] = {
            name: ragged.padded(numbers, fills.get(name, 0))
            for name, ragged in self._ragged.items()
        }
        if "decoder_input_ids" in arrays:
            arrays["decoder_lengths"] = self._ragged["decoder_input_ids"].sizes[numbers]
        if self._sequence_labels is not None:
            arrays["sequence_labels"] = self._sequence_labels[numbers]
        return RowBatch(lengths=self._ragged["input_ids"].sizes[numbers], **arrays)


class _Ragged:
    """Lists of different lengths in one array."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.sizes = np.array([len(row) for row in rows], dtype=np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.sizes)))[:-1].astype(np.int64)
        self.values = np.empty(int(self.sizes.sum()), dtype=np.int32)
        for start, row in zip(self.starts.tolist(), rows):
            self.values[start : start + len(row)] = row

    def padded(self, numbers: NDArray[np.int64], fill: int) -> NDArray[np.int64]:
        """int64 [B, T] with T of the longest row."""
        sizes = self.sizes[numbers]
        columns = np.arange(sizes.max(initial=0))
        real = columns < sizes[:, None]
        padded = np.full(real.shape, fill, dtype=np.int64)
        padded[real] = self.values[(self.starts[numbers][:, None] + columns)[real]]
        return padded
