"""Labelled examples in a file, which all processes map instead of keeping the examples in memory.

`examples.json` contains blocks of `_BLOCK` examples. A block has one JSON array per field of the
examples, so that a single field of all examples, such as the label, can be read quickly.
`blocks.npy` contains the byte offsets of these arrays, int64 [blocks * fields + 1]. A block is
decoded when one of its examples is read.
"""

from __future__ import annotations

import dataclasses
import itertools
import mmap
import typing
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

_BLOCK = 256
_EXAMPLES_FILE, _OFFSETS_FILE = "examples.json", "blocks.npy"


class ExampleWriter:
    """Writes examples of one dataclass to a folder, one after the other.

    It is a context manager: at the end of the `with` block, the files are complete.

    Args:
        folder: an existing folder.
        example_type: the dataclass. Its fields must be values that JSON can represent.
    """

    def __init__(self, folder: Path, example_type: type) -> None:
        self._adapters = _make_adapters(example_type)
        self._folder, self._block = folder, list[Any]()
        self._file = (folder / _EXAMPLES_FILE).open("wb")
        self._offsets = array("q", [0])

    def append(self, example: Any) -> None:
        """Write an example."""
        self._block.append(example)
        if len(self._block) == _BLOCK:
            self._write_block()

    def _write_block(self) -> None:
        """Write the examples that have been collected since the last block."""
        for name, adapter in self._adapters.items():
            column = adapter.dump_json([getattr(one, name) for one in self._block])
            self._offsets.append(self._offsets[-1] + self._file.write(column))
        self._block = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None and self._block:
            self._write_block()
        self._file.close()
        np.save(self._folder / _OFFSETS_FILE, np.array(self._offsets, dtype=np.int64))


class StoredExamples(Sequence[Any]):
    """The examples that an `ExampleWriter` has written to a folder. The file is memory-mapped.

    Only the block of the example that was read last is in memory. Examples are therefore read
    fastest in order.

    Args:
        folder: the folder.
        example_type: the dataclass of the examples.
        length: the number of examples.
    """

    def __init__(self, folder: Path, example_type: type, length: int) -> None:
        self._type, self._length = example_type, length
        self._adapters = _make_adapters(example_type)
        self._fields = {name: place for place, name in enumerate(self._adapters)}
        self._offsets = np.load(folder / _OFFSETS_FILE, mmap_mode="r")
        self._bytes: Any = b""
        if length:
            with (folder / _EXAMPLES_FILE).open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._number, self._block = -1, list[Any]()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"example {index} of {self._length}")
        number, place = divmod(index % self._length, _BLOCK)
        if number != self._number:
            self._block, self._number = self._read_block(number), number
        return self._block[place]

    def _read_block(self, number: int) -> list[Any]:
        """Return the examples in the block with the index `number`."""
        rows = zip(*(self._read_column(number, name) for name in self._fields), strict=True)
        return [self._type(**dict(zip(self._fields, row))) for row in rows]

    def read_field(self, name: str) -> Iterator[Any]:
        """Yield the value of a field of every example, without reading the other fields."""
        for number in range(-(-self._length // _BLOCK)):
            yield from self._read_column(number, name)

    def _read_column(self, number: int, name: str) -> list[Any]:
        """Return the values of a field of the examples in the block with the index `number`."""
        first = number * len(self._fields) + self._fields[name]
        start, stop = self._offsets[first : first + 2].tolist()
        return self._adapters[name].validate_json(self._bytes[start:stop])


class SelectedExamples(Sequence[Any]):
    """Some of the examples of a sequence, which are read only when they are needed.

    Args:
        examples: the sequence.
        indices: the indices of the selected examples, [N].
    """

    def __init__(self, examples: Sequence[Any], indices: NDArray[np.integer]) -> None:
        self.examples, self.indices = examples, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.indices), _BLOCK):
            yield from map(self.examples.__getitem__, self.indices[start : start + _BLOCK].tolist())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self.examples[i] for i in self.indices[index].tolist()]
        return self.examples[int(self.indices[index])]

    def read_field(self, name: str) -> Iterator[Any]:
        """Return an iterator over the values of a field of the selected examples.

        The other fields are not read if the examples are in a file, and selected in its order.
        """
        in_order = (np.diff(self.indices) > 0).all()
        if not (in_order and isinstance(self.examples, StoredExamples)):
            return (getattr(one, name) for one in self)
        selected = np.zeros(len(self.examples), dtype=bool)
        selected[self.indices] = True
        return itertools.compress(self.examples.read_field(name), selected)

    def copy(self) -> SelectedExamples:
        """Return the same examples, but without a reference to those that are not selected."""
        return SelectedExamples(list(self), np.arange(len(self)))

    def select(self, positions: NDArray[Any]) -> SelectedExamples:
        """Return the examples at the given positions, or where a mask [N] is True."""
        return SelectedExamples(self.examples, self.indices[positions])


def read_field(examples: Sequence[Any], name: str) -> Iterator[Any]:
    """Return an iterator over the values of a field of all examples, in their order."""
    if isinstance(examples, StoredExamples):
        return examples.read_field(name)
    if isinstance(examples, SelectedExamples):
        return examples.read_field(name)
    return (getattr(one, name) for one in examples)


def _make_adapters(example_type: type) -> dict[str, TypeAdapter[list[Any]]]:
    """Return adapters that convert a list of values of each field to JSON and back, by field."""
    types = typing.get_type_hints(example_type)
    names = [field.name for field in dataclasses.fields(example_type)]
    return {name: TypeAdapter(list[types[name]]) for name in names}  # type: ignore[valid-type]
