"""Writing token shards: append-only files that can be cut back to a point and gone on with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from trivium.data.shards import ShardFile, counts_path, index_path, shard_path

_CHUNK = 1 << 20


def token_dtype(vocab_size: int) -> np.dtype:
    """The type that token ids are stored as: uint16 where the vocabulary fits, else uint32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file aside, fsync it and rename it into place."""
    aside = path.with_name(path.name + ".partial")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


class SplitWriter:
    """Appends the documents of one split to its numbered shards.

    A shard is closed after the document that brings it to `shard_tokens`. Besides the `.bin` of a
    shard stands a raw file with the int64 end of every document, which `finish` turns into the
    index. `files` (tokens and documents of every shard, the last one open) is all the state there
    is: given back to the constructor after a crash, it cuts the files to that point.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        dtype: np.dtype,
        shard_tokens: int,
        files: list[list[int]] | None = None,
    ) -> None:
        self.folder = folder
        self.split = split
        self.dtype = dtype
        self.shard_tokens = shard_tokens
        self.files: list[list[int]] = [list(file) for file in files or []]
        self._open: tuple[BinaryIO, BinaryIO] | None = None
        if self.files and self.files[-1][0] < shard_tokens:
            tokens, documents = self.files[-1]
            self._open_shard("r+b")
            for file, size in zip(self._open or (), (tokens * dtype.itemsize, documents * 8)):
                assert file.seek(0, os.SEEK_END) >= size
                file.truncate(size)
                file.seek(size)

    @property
    def tokens(self) -> int:
        """Tokens written so far."""
        return sum(tokens for tokens, _ in self.files)

    @property
    def documents(self) -> int:
        """Documents finished so far."""
        return sum(documents for _, documents in self.files)

    def append(self, ids: NDArray, ends: NDArray[np.int64]) -> None:
        """Append token ids; `ends` says after which of them a document ends.

        Ids after the last end belong to a document that the next call goes on with.
        """
        start = 0
        while start < len(ids):
            if self._open is None:
                self.files.append([0, 0])
                self._open_shard("wb")
            # In the place of `ends`, so that the first end at or past it closes the shard.
            full = self.shard_tokens - self.files[-1][0] + start
            last = int(np.searchsorted(ends, full))
            closes = last < len(ends)
            stop = int(ends[last]) if closes else len(ids)
            self._write(ids[start:stop], ends[: last + 1] - start)
            ends = ends[last + 1 :]
            start = stop
            if closes:
                self._close_shard()

    def _write(self, ids: NDArray, ends: NDArray[np.int64]) -> None:
        assert self._open is not None
        token_file, end_file = self._open
        token_file.write(ids.astype(self.dtype, copy=False).tobytes())
        end_file.write((ends + self.files[-1][0]).astype("<i8").tobytes())
        self.files[-1][0] += len(ids)
        self.files[-1][1] += len(ends)

    def _open_shard(self, mode: Literal["wb", "r+b"]) -> None:
        number = len(self.files) - 1
        tokens = shard_path(self.folder, self.split, number)
        self._open = (tokens.open(mode), self._ends_path(number).open(mode))

    def _close_shard(self) -> None:
        self.sync()
        if self._open is not None:
            for file in self._open:
                file.close()
        self._open = None

    def _ends_path(self, number: int) -> Path:
        return self.folder / f"{self.split}-{number:05}.ends"

    def sync(self) -> None:
        """Make everything appended so far durable."""
        for file in self._open or ():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        self._close_shard()

    def finish(self, vocab_size: int) -> tuple[ShardFile, ...]:
        """Write the indices and the counts, and return what the manifest says of the files."""
        self._close_shard()
        counts = np.zeros(vocab_size, dtype=np.int64)
        described = []
        for number, (tokens, documents) in enumerate(self.files):
            ends = np.fromfile(self._ends_path(number), dtype="<i8")
            _save(index_path(self.folder, self.split, number), np.concatenate([[0], ends]))
            path = shard_path(self.folder, self.split, number)
            with path.open("rb") as file:
                while len(ids := np.fromfile(file, self.dtype, count=_CHUNK)):
                    counts += np.bincount(ids, minlength=vocab_size)
            described.append(ShardFile(path.name, tokens, documents))
        _save(counts_path(self.folder, self.split), counts)
        return tuple(described)


def _save(path: Path, array: NDArray[np.int64]) -> None:
    with path.open("wb") as file:
        np.save(file, array.astype("<i8", copy=False))
        file.flush()
        os.fsync(file.fileno())
