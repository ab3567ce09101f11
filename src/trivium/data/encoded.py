"""Labelled examples as token ids: ragged sequences, padded when a batch is taken.

In a folder, `{field}.bin` has the integers of all examples (int32) and `index.npz` the length of
each; read back they are memory-mapped, so that processes of a machine share them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.batch import IGNORE_INDEX, Ints, RowBatch, padded_length
from trivium.files import replace_folder

_INDEX = "index.npz"
_TOKEN_FIELDS = ("input_ids", "decoder_input_ids")


Sequences = dict[str, list[list[int]]]
"""The token ids (or labels, ...) of every example by the field of `RowBatch`."""
Truncations = list[tuple[int, int, int]]
"""What truncation has removed from every example; see `EncodedExamples`."""


class EncodedExamples:
    """Encoded examples, by the field of `RowBatch` they become.

    Args:
        sequences: one list of integers per example, or several in a `Ragged`, for every field with
            positions (`input_ids`, which is required, `token_type_ids`, `position_ids`,
            `document_ids`, `decoder_input_ids`, `labels`). `labels` are as long as
            `decoder_input_ids` where there are any, everything else as `input_ids`.
        sequence_labels: labels of whole sequences, [N] or [N, L].
        truncations: three counts for every example, [E, 3]: the tokens that truncation has removed,
            the target tokens of the whole example, and the target tokens that truncation has
            removed. Examples
            without any remaining target token have no row, so that E may exceed the number N of
            rows. Without `truncations` every row is a whole example.
        pad_id: padding of token ids; None: 0. Labels are padded with `IGNORE_INDEX`, other fields
            with 0.
    """

    def __init__(
        self,
        sequences: Mapping[str, Sequence[Sequence[int]] | Ragged],
        *,
        sequence_labels: ArrayLike | None = None,
        truncations: ArrayLike | None = None,
        pad_id: int | None = None,
    ) -> None:
        ragged = {name: Ragged.of(rows) for name, rows in sequences.items()}
        self.pad_id, self._ragged = pad_id or 0, ragged
        self._sequence_labels = None if sequence_labels is None else np.asarray(sequence_labels)
        labelled = "decoder_input_ids" if "decoder_input_ids" in ragged else "input_ids"
        for name, rows in ragged.items():
            like = labelled if name in ("decoder_input_ids", "labels") else "input_ids"
            assert len(rows.sizes) == len(self), f"{name} has another number of examples"
            same = np.array_equal(rows.sizes, ragged[like].sizes)
            assert same, f"{name} and {like} differ in length"
        assert self._sequence_labels is None or len(self._sequence_labels) == len(self)
        sizes = [ragged[name].totals for name in _TOKEN_FIELDS if name in ragged]
        self.lengths: Ints = np.sum(sizes, axis=0)
        """Tokens of each example, those of the decoder included, int64 [N]."""
        whole = [(0, 1, 0)] * len(self) if truncations is None else truncations
        self.truncations: Ints = np.asarray(whole, dtype=np.int64).reshape(-1, 3)

    @classmethod
    def with_targets(
        cls,
        sequences: Mapping[str, Sequence[Sequence[int]] | Ragged],
        truncations: Sequence[Sequence[int]],
        *,
        sequence_labels: ArrayLike | None = None,
        pad_id: int | None = None,
    ) -> Self:
        """Return the examples without those that have no target token left."""
        kept = has_target(truncations)
        rows = {name: Ragged.of(each).select(kept) for name, each in sequences.items()}
        labels = None if sequence_labels is None else np.asarray(sequence_labels)[kept]
        return cls(rows, sequence_labels=labels, truncations=truncations, pad_id=pad_id)

    @staticmethod
    def store(chunks: Iterable[EncodedExamples], folder: Path) -> None:
        """Write examples to a folder, chunk by chunk; only one chunk is in memory."""
        sizes: dict[str, list[Ints]] = {}
        labels: list[NDArray] = []
        truncations: list[Ints] = []
        pad_id = 0
        with replace_folder(folder) as new, contextlib.ExitStack() as stack:
            files: dict[str, BinaryIO] = {}
            for chunk in chunks:
                pad_id = chunk.pad_id
                truncations.append(chunk.truncations)
                if chunk._sequence_labels is not None:
                    labels.append(chunk._sequence_labels)
                for name, ragged in chunk._ragged.items():
                    if name not in files:
                        files[name] = stack.enter_context((new / f"{name}.bin").open("wb"))
                    files[name].write(ragged.values.tobytes())
                    sizes.setdefault(name, []).append(ragged.sizes)
            arrays: dict[str, Any] = {n: np.concatenate(each) for n, each in sizes.items()}
            if labels:
                arrays["sequence_labels"] = np.concatenate(labels)
            arrays["cuts"] = np.concatenate(truncations)
            np.savez(new / _INDEX, pad_id=np.array(pad_id), **arrays)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the examples that `store` wrote."""
        with np.load(folder / _INDEX) as stored:
            arrays = dict(stored)
        pad_id, labels = int(arrays.pop("pad_id")), arrays.pop("sequence_labels", None)
        truncations = arrays.pop("cuts")
        ragged = {n: Ragged.mapped(folder / f"{n}.bin", sizes) for n, sizes in arrays.items()}
        return cls(ragged, sequence_labels=labels, truncations=truncations, pad_id=pad_id)

    def __len__(self) -> int:
        return len(self._ragged["input_ids"].sizes)

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all examples."""
        return int(self.lengths.sum())

    def largest_id(self, field: str) -> int:
        """Return the largest token id of a field, 0 without one."""
        return int(self._ragged[field].values.max(initial=0)) if field in self._ragged else 0

    def take(self, indices: ArrayLike, *, multiple: int = 1) -> RowBatch:
        """Return the examples with the given indices, in that order, padded on the right.

        They are padded to the next multiple of `multiple` after the longest of them, but never
        beyond the longest of all examples.
        """
        numbers = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        fills = {**dict.fromkeys(_TOKEN_FIELDS, self.pad_id), "labels": IGNORE_INDEX}
        arrays: dict[str, NDArray] = {
            name: ragged.padded(numbers, fills.get(name, 0), multiple)
            for name, ragged in self._ragged.items()
        }
        if "decoder_input_ids" in arrays:
            arrays["decoder_lengths"] = self._ragged["decoder_input_ids"].sizes[numbers]
        if self._sequence_labels is not None:
            arrays["sequence_labels"] = self._sequence_labels[numbers]
        return RowBatch(lengths=self._ragged["input_ids"].sizes[numbers], **arrays)


def has_target(truncations: ArrayLike) -> NDArray[np.bool_]:
    """Return which examples have a target token left: bool [E] of `truncations` [E, 3]."""
    truncations = np.asarray(truncations, dtype=np.int64).reshape(-1, 3)
    return truncations[:, 2] < truncations[:, 1]


class Ragged:
    """Lists of different lengths in one array.

    Args:
        sizes: the length of every list: [N], or [N, K] if every example has K lists.
        values: the lists, one after the other.
    """

    def __init__(self, sizes: Ints, values: NDArray[np.int32]) -> None:
        self.sizes, self.values = sizes, values
        self.starts = (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape).astype(np.int64)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]] | Ragged, *, per_example: int = 1) -> Ragged:
        """Create the array from lists, of which `per_example` in a row belong to one example."""
        if isinstance(rows, Ragged):
            return rows
        sizes = np.array([len(row) for row in rows], dtype=np.int64)
        numbers = itertools.chain.from_iterable(rows)
        values = np.fromiter(numbers, np.int32, int(sizes.sum()))
        return cls(sizes.reshape(-1, per_example) if per_example > 1 else sizes, values)

    @classmethod
    def mapped(cls, file: Path, sizes: Ints) -> Self:
        """Map the array from a file. An empty file cannot be mapped."""
        empty = np.empty(0, np.int32)
        return cls(sizes, np.memmap(file, np.int32, mode="r") if sizes.any() else empty)

    @property
    def totals(self) -> Ints:
        """The number of values of every example, int64 [N]."""
        return self.sizes.sum(axis=tuple(range(1, self.sizes.ndim)))

    def select(self, kept: NDArray[np.bool_]) -> Ragged:
        """Return the examples at which `kept`, bool [N], is True."""
        return Ragged(self.sizes[kept], self.values[np.repeat(kept, self.totals)])

    def padded(self, numbers: Ints, fill: int, multiple: int) -> Ints:
        """Return int64 [B, T] or [B, K, T]; T is the longest size, or the next multiple."""
        sizes, most = self.sizes[numbers], self.sizes.max(initial=0)
        columns = np.arange(min(padded_length(sizes.max(initial=0), multiple), most))
        real = columns < sizes[..., None]
        padded = np.full(real.shape, fill, dtype=np.int64)
        padded[real] = self.values[(self.starts[numbers][..., None] + columns)[real]]
        return padded
