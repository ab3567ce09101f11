"""Labelled examples as token ids: sequences of different lengths, padded only when batched.

A folder of encoded examples contains three files for each field: `{field}.bin` with the int32
values of all examples, and `{field}.sizes.npy` and `{field}.starts.npy` with the length and the
first index of each list. All files are memory-mapped when they are opened, so that the processes of
a machine share the memory.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trivium.data.batch import IGNORE_INDEX, Ints, RowBatch, round_up
from trivium.files import replace_folder

_INDEX_FILE = "index.json"
_LABELS_FILE, _TRUNCATIONS_FILE = "sequence_labels.npy", "truncations.npy"
_TOKEN_FIELDS = ("input_ids", "decoder_input_ids")


Sequences = dict[str, list[list[int]]]
"""For each field of `RowBatch`, such as "input_ids", one list of integers per example."""
Truncations = list[tuple[int, int, int]]
"""Three counts per example: tokens removed, target tokens before truncation, targets removed."""


class EncodedExamples:
    """N encoded examples: for each field, one sequence of integers per example.

    Args:
        sequences: for each field, one list of integers per example, or a `Ragged` with one or more
            lists per example. `input_ids` is required; `token_type_ids`, `position_ids`,
            `document_ids`, `decoder_input_ids` and `labels` are optional. If there are
            `decoder_input_ids`, `labels` have their length. All other fields have the length of
            `input_ids`.
        sequence_labels: labels of whole sequences, [N], or [N, L] for L labels per example.
        truncations: [E, 3], three counts for each of E examples: the tokens that truncation
            removed, the target tokens before truncation, and the target tokens that truncation
            removed. E may exceed N, because it includes examples that were dropped since no target
            token remained. If None, no example was truncated.
        pad_id: the value that pads token ids; None stands for 0. Labels are padded with
            `IGNORE_INDEX`, and other fields with 0.
    """

    def __init__(
        self,
        sequences: Mapping[str, Sequence[Sequence[int]] | Ragged],
        *,
        sequence_labels: ArrayLike | None = None,
        truncations: ArrayLike | None = None,
        pad_id: int | None = None,
    ) -> None:
        ragged = {name: Ragged.from_lists(rows) for name, rows in sequences.items()}
        self.pad_id, self._ragged = pad_id or 0, ragged
        self._largest: dict[str, int] = {}  # the largest value of each field, once it is known
        self.sequence_labels: NDArray[Any] | None = None
        """The labels of whole sequences, as given."""
        if sequence_labels is not None:
            self.sequence_labels = np.asarray(sequence_labels)
        labelled = "decoder_input_ids" if "decoder_input_ids" in ragged else "input_ids"
        for name, rows in ragged.items():
            like = labelled if name in ("decoder_input_ids", "labels") else "input_ids"
            assert len(rows.sizes) == len(self), f"{name} has another number of examples"
            same = np.array_equal(rows.sizes, ragged[like].sizes)
            assert same, f"{name} and {like} differ in length"
        assert self.sequence_labels is None or len(self.sequence_labels) == len(self)
        totals = [ragged[name].totals for name in _TOKEN_FIELDS if name in ragged]
        self.lengths: Ints = totals[0] if len(totals) == 1 else np.sum(totals, axis=0)
        """The number of tokens in each example, including decoder tokens, int64 [N]."""
        whole = np.tile([0, 1, 0], (len(self), 1)) if truncations is None else truncations
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
        """Create encoded examples, and drop examples without a target token after truncation.

        The arguments are those of the class, except that `sequences` and `sequence_labels` contain
        all E examples.
        """
        mask = has_target(truncations)
        rows = {name: Ragged.from_lists(each).filter(mask) for name, each in sequences.items()}
        labels = None if sequence_labels is None else np.asarray(sequence_labels)[mask]
        return cls(rows, sequence_labels=labels, truncations=truncations, pad_id=pad_id)

    @staticmethod
    def store(chunks: Iterable[EncodedExamples], folder: Path) -> None:
        """Write encoded examples to a folder, which is replaced. `open` opens them again.

        `chunks` yields the examples in groups. The groups are written one after the other, so that
        only one is in memory.
        """
        with replace_folder(folder) as new:
            EncodedExamples.write(chunks, new)

    @staticmethod
    def write(chunks: Iterable[EncodedExamples], folder: Path) -> None:
        """Write encoded examples to an existing folder, like `store`."""
        sizes: dict[str, list[Ints]] = {}
        labels: list[NDArray] = []
        truncations: list[Ints] = []
        pad_id, largest = 0, dict[str, int]()
        with contextlib.ExitStack() as stack:
            files: dict[str, BinaryIO] = {}
            for chunk in chunks:
                pad_id = chunk.pad_id
                truncations.append(chunk.truncations)
                if chunk.sequence_labels is not None:
                    labels.append(chunk.sequence_labels)
                for name, ragged in chunk._ragged.items():
                    if name not in files:
                        files[name] = stack.enter_context((folder / f"{name}.bin").open("wb"))
                    files[name].write(np.ascontiguousarray(ragged.values).data)
                    sizes.setdefault(name, []).append(ragged.sizes)
                    largest[name] = max(largest.get(name, 0), chunk.largest_id(name))
        for name, each in sizes.items():
            Ragged(np.concatenate(each), np.empty(0, np.int32)).save_index(folder, name)
        if labels:
            np.save(folder / _LABELS_FILE, np.concatenate(labels))
        np.save(folder / _TRUNCATIONS_FILE, np.concatenate(truncations))
        index = {"pad_id": pad_id, "largest": largest}
        (folder / _INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the encoded examples in a folder written by `store`, memory-mapped."""
        index = json.loads((folder / _INDEX_FILE).read_text(encoding="utf-8"))
        labels = folder / _LABELS_FILE
        examples = cls(
            {name: Ragged.memory_map(folder, name) for name in index["largest"]},
            sequence_labels=np.load(labels, mmap_mode="r") if labels.is_file() else None,
            truncations=np.load(folder / _TRUNCATIONS_FILE, mmap_mode="r"),
            pad_id=index["pad_id"],
        )
        examples._largest = index["largest"]
        return examples

    def __len__(self) -> int:
        return len(self._ragged["input_ids"].sizes)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in all examples, including decoder tokens."""
        return int(self.lengths.sum())

    def largest_id(self, field: str) -> int:
        """Return the largest token id in a field, or 0 if the examples do not have the field."""
        if field not in self._largest and field in self._ragged:
            self._largest[field] = int(self._ragged[field].values.max(initial=0))
        return self._largest.get(field, 0)

    def take(self, indices: ArrayLike, *, multiple: int = 1) -> RowBatch:
        """Return the examples with the given indices as a batch, in this order.

        The examples are padded on the right to the length of the longest example in the batch,
        rounded up to a multiple of `multiple`, but at most to the length of the longest of all N.
        """
        row_indices = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        fills = {**dict.fromkeys(_TOKEN_FIELDS, self.pad_id), "labels": IGNORE_INDEX}
        arrays: dict[str, NDArray] = {
            name: ragged.pad_rows(row_indices, fills.get(name, 0), multiple)
            for name, ragged in self._ragged.items()
        }
        if "decoder_input_ids" in arrays:
            arrays["decoder_lengths"] = self._ragged["decoder_input_ids"].sizes[row_indices]
        if self.sequence_labels is not None:
            arrays["sequence_labels"] = self.sequence_labels[row_indices]
        return RowBatch(lengths=self._ragged["input_ids"].sizes[row_indices], **arrays)


def has_target(truncations: ArrayLike) -> NDArray[np.bool_]:
    """Return for each example whether a target token is left after truncation, bool [E].

    `truncations` is [E, 3], as in `EncodedExamples`.
    """
    truncations = np.asarray(truncations, dtype=np.int64).reshape(-1, 3)
    return truncations[:, 2] < truncations[:, 1]


class Ragged:
    """A ragged array: lists of different lengths, stored one after the other in a flat array.

    Args:
        sizes: the length of each list, [N], or [N, K] if each of N examples has K lists.
        values: the values of all lists in a flat array.
        starts: the index of the first value of each list, in the shape of `sizes`. If None, it is
            computed.
    """

    def __init__(self, sizes: Ints, values: NDArray[np.int32], starts: Ints | None = None) -> None:
        if starts is None:
            starts = (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape).astype(np.int64)
        self.sizes, self.values, self.starts = sizes, values, starts

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]] | Ragged, *, per_example: int = 1) -> Ragged:
        """Create a ragged array from lists of integers. A `Ragged` is returned unchanged.

        `per_example` is K, the number of consecutive lists that belong to one example.
        """
        if isinstance(rows, Ragged):
            return rows
        sizes = np.array([len(row) for row in rows], dtype=np.int64)
        integers = itertools.chain.from_iterable(rows)
        values = np.fromiter(integers, np.int32, int(sizes.sum()))
        return cls(sizes.reshape(-1, per_example) if per_example > 1 else sizes, values)

    @classmethod
    def memory_map(cls, folder: Path, name: str) -> Self:
        """Memory-map the ragged array of a field. The files are those of the module's docstring.

        If all lists are empty, the file of values is not opened.
        """
        sizes, starts = (np.load(path, mmap_mode="r") for path in cls._index_paths(folder, name))
        file = folder / f"{name}.bin"
        values = (
            np.memmap(file, np.int32, mode="r") if file.stat().st_size else np.empty(0, np.int32)
        )
        return cls(sizes, values, starts)

    def save_index(self, folder: Path, name: str) -> None:
        """Write the length and the first index of every list to the files of a field."""
        for path, array in zip(self._index_paths(folder, name), (self.sizes, self.starts)):
            np.save(path, array)

    @staticmethod
    def _index_paths(folder: Path, name: str) -> tuple[Path, Path]:
        """Return the paths of the lengths and of the first indices of a field."""
        return folder / f"{name}.sizes.npy", folder / f"{name}.starts.npy"

    @property
    def totals(self) -> Ints:
        """The number of values in each example, summed over its lists, int64 [N]."""
        return self.sizes if self.sizes.ndim == 1 else self.sizes.sum(axis=1)

    def filter(self, mask: NDArray[np.bool_]) -> Ragged:
        """Return a ragged array of the examples for which `mask`, bool [N], is True."""
        return Ragged(self.sizes[mask], self.values[np.repeat(mask, self.totals)])

    def pad_rows(self, row_indices: Ints, pad_value: int, multiple: int) -> Ints:
        """Return the examples with the given indices as a padded array, int64 [B, T] or [B, K, T].

        Args:
            row_indices: int64 [B], the indices of the examples.
            pad_value: the padding value.
            multiple: T is the length of the longest returned list, rounded up to a multiple of
                this number, but at most the length of the longest list of all.
        """
        sizes, most = self.sizes[row_indices], self.sizes.max(initial=0)
        columns = np.arange(min(round_up(sizes.max(initial=0), multiple), most))
        is_value = columns < sizes[..., None]
        padded = np.full(is_value.shape, pad_value, dtype=np.int64)
        padded[is_value] = self.values[(self.starts[row_indices][..., None] + columns)[is_value]]
        return padded
