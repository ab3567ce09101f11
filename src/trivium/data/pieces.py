"""Pieces of an unfinished preparation: one finished shard per split, and a marker, for each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter

from trivium.data.shards import (
    TRAIN,
    VALIDATION,
    ShardFile,
    SourceInfo,
    index_path,
    shard_path,
)
from trivium.files import replace_file, sync, write_json

SPLITS = (TRAIN, VALIDATION)
NUM_EXCERPTS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class CorpusCounts:
    """Text kept and dropped so far; see `SplitInfo`."""

    text_bytes: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    duplicates: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    overlap: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The marker of a finished piece of input.

    `sources` were read for it, the last one perhaps in part; the next piece begins with document
    `next_document` of source `next_source`. `files` are its shards by split, `excerpts` the
    beginnings of its first documents; `counts` include those of all pieces before it.
    """

    sources: tuple[SourceInfo, ...] = ()
    next_source: int = 0
    next_document: int = 0
    files: dict[str, ShardFile] = dataclasses.field(default_factory=dict)
    excerpts: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    counts: CorpusCounts = dataclasses.field(default_factory=CorpusCounts)


class Pieces:
    """The finished pieces in a work folder, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pieces: list[Piece] = []

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def last(self) -> Piece:
        """The last finished piece; one of nothing at the beginning."""
        return self._pieces[-1] if self._pieces else Piece()

    @property
    def num_tokens(self) -> int:
        """Tokens of all shards."""
        return sum(file.tokens for split in SPLITS for file in self.files(split))

    def files(self, split: str) -> tuple[ShardFile, ...]:
        """The finished shards of a split; their position is their number."""
        return tuple(piece.files[split] for piece in self._pieces if split in piece.files)

    def excerpts(self, split: str) -> tuple[str, ...]:
        """The beginnings of the first documents of a split."""
        found = (one for piece in self._pieces for one in piece.excerpts.get(split, ()))
        return tuple(itertools.islice(found, NUM_EXCERPTS))

    def add(self, piece: Piece, digests: Mapping[str, ArrayLike]) -> None:
        """Write the marker of a piece, whose shards are on the disk, and its document digests."""
        marker = self._marker(len(self))
        with replace_file(marker.with_suffix(".npz")) as file:
            arrays = {split: np.asarray(digests[split], np.uint64) for split in SPLITS}
            np.savez(file, allow_pickle=False, **arrays)
        write_json(marker, dataclasses.asdict(piece))
        self._pieces.append(piece)

    def load(self, infos: Sequence[SourceInfo]) -> dict[str, list[int]]:
        """Load the pieces that were made of the sources as they are now.

        Returns the digests of their documents by split.
        """
        digests: dict[str, list[int]] = {split: [] for split in SPLITS}
        while (marker := self._marker(len(self))).is_file():
            piece = TypeAdapter(Piece).validate_json(marker.read_bytes())
            start = self.last.next_source
            if tuple(infos[start : start + len(piece.sources)]) != piece.sources:
                break
            with np.load(marker.with_suffix(".npz")) as stored:
                for split in stored:
                    digests[split] += stored[split].tolist()
            self._pieces.append(piece)
        return digests

    def remove_others(self, keep: set[str]) -> None:
        """Remove all files of the folder but those of the pieces and those named in `keep`."""
        markers = [self._marker(number) for number in range(len(self))]
        paths = [*markers, *(marker.with_suffix(".npz") for marker in markers)]
        for split in SPLITS:
            for number in range(len(self.files(split))):
                paths += (
                    shard_path(self.folder, split, number),
                    index_path(self.folder, split, number),
                )
        names = keep | {path.name for path in paths}
        for path in self.folder.iterdir():
            if path.name not in names:
                path.unlink()

    def _marker(self, number: int) -> Path:
        return self.folder / f"piece-{number:05}.json"


class ShardWriter:
    """Appends documents to one shard, whose `file` the caller closes after an error."""

    def __init__(self, folder: Path, split: str, number: int, dtype: np.dtype) -> None:
        self._path = shard_path(folder, split, number)
        self._index_path = index_path(folder, split, number)
        self._dtype = dtype
        self.file = self._path.open("wb")
        self._offsets: list[NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]
        self._tokens = 0

    def append(self, ids: NDArray, ends: NDArray[np.int64]) -> None:
        """Append token ids; `ends` are the positions in `ids` at which documents end.

        Ids after the last end belong to a document that the next call continues.
        """
        self.file.write(ids.astype(self._dtype, copy=False).tobytes())
        self._offsets.append(ends + self._tokens)
        self._tokens += len(ids)

    def finish(self) -> ShardFile:
        """Close the shard, write its index, and flush both to the disk."""
        self.file.close()
        sync(self._path)
        offsets = np.concatenate(self._offsets)
        with replace_file(self._index_path) as file:
            np.save(file, offsets)
        return ShardFile(self._tokens, len(offsets) - 1)
