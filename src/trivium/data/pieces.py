"""Pieces of an unfinished preparation, each made of its own texts alone, and their merging.

The sources are cut into groups, and the texts of a group into pieces of some 64 MB. A finished
piece has one shard per split, the digests of its documents, and a marker. Nothing in a piece
depends on any other: processes and machines make them in any order. What repeats a document before
it is dropped when the pieces are merged.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from trivium.data.batch import Bools, Ints
from trivium.data.shards import (
    TRAIN,
    VALIDATION,
    ShardFile,
    SourceInfo,
    SplitInfo,
    index_path,
    shard_path,
)
from trivium.data.sources import Source
from trivium.data.splitting import source_infos
from trivium.errors import DataError, shorten
from trivium.files import has_sha256, replace_file, sha256, sync, write_json

SPLITS = (TRAIN, VALIDATION)
NUM_EXCERPTS = 4
_DOCUMENTS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class SourceGroup:
    """Consecutive sources that one process reads: a large file, or several small ones."""

    number: int
    sources: tuple[Source, ...]

    @property
    def infos(self) -> tuple[SourceInfo, ...]:
        """The sources as the manifest has them."""
        return source_infos(self.sources)

    @property
    def size(self) -> int:
        """Bytes of the sources as stored."""
        return sum(source.size for source in self.sources)


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The marker of a finished piece.

    `sources` are all of its group; the next piece of the group begins behind `next_document`
    documents of source `next_source`. Of each split, `files` has its shard and `excerpts` the
    beginnings of its first documents. `notes_sha256` is that of the digests.
    """

    sources: tuple[SourceInfo, ...]
    next_source: Annotated[int, Field(ge=0)] = 0
    next_document: Annotated[int, Field(ge=0)] = 0
    files: dict[str, ShardFile] = dataclasses.field(default_factory=dict)
    excerpts: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    notes_sha256: str = ""

    @property
    def ends_group(self) -> bool:
        """Whether all of the group is read."""
        return self.next_source == len(self.sources)


@dataclasses.dataclass(frozen=True, slots=True)
class PieceName:
    """A piece by its group and its number in the group, and its files."""

    group: int
    number: int

    def path(self, folder: Path, suffix: str) -> Path:
        """A file of the piece: `.json` is its marker, `.npz` are its digests."""
        return folder / f"piece-{self.group:05}-{self.number:04}{suffix}"

    def shard(self, folder: Path, split: str) -> tuple[Path, Path]:
        """The token ids of a split, and their index."""
        return self.path(folder, f"-{split}.bin"), self.path(folder, f"-{split}.idx.npy")


@dataclasses.dataclass(slots=True)
class SplitNotes:
    """The digests and UTF-8 sizes of all documents of one split of a piece, and excerpts."""

    digests: list[int] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    excerpts: list[str] = dataclasses.field(default_factory=list)


class Pieces:
    """The finished pieces in a work folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pieces: dict[PieceName, Piece] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    def total(self, what: str) -> int:
        """How many "tokens" or "documents" all pieces have."""
        pieces = self._pieces.values()
        return sum(getattr(file, what) for piece in pieces for file in piece.files.values())

    def of(self, group: SourceGroup) -> list[Piece]:
        """The finished pieces of a group, in order."""
        return [piece for name, piece in self._pieces.items() if name.group == group.number]

    def add(self, name: PieceName, piece: Piece, notes: Mapping[str, SplitNotes]) -> None:
        """Write the marker of a piece, whose shards are on the disk, and its digests."""
        arrays = {}
        for split, noted in notes.items():
            arrays[f"{split}_digests"] = np.array(noted.digests, np.uint64)
            arrays[f"{split}_sizes"] = np.array(noted.sizes, np.int64)
        stored = name.path(self.folder, ".npz")
        with replace_file(stored) as file:
            np.savez(file, allow_pickle=False, **arrays)
        piece = dataclasses.replace(piece, notes_sha256=sha256(stored))
        write_json(name.path(self.folder, ".json"), dataclasses.asdict(piece))
        self._pieces[name] = piece

    def load(self, group: SourceGroup) -> None:
        """Load the pieces of a group that were made of its sources as they are now.

        Raises DataError where one is damaged.
        """
        name = PieceName(group.number, 0)
        while (marker := name.path(self.folder, ".json")).is_file():
            try:
                piece = TypeAdapter(Piece).validate_json(marker.read_bytes())
                if piece.sources != group.infos:
                    return
                self._verify(name, piece)
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{marker}: this finished piece is damaged ({shorten(str(error), 200)}). "
                    f"Remove {self.folder} to begin anew."
                ) from error
            self._pieces[name] = piece
            name = PieceName(group.number, name.number + 1)

    def _verify(self, name: PieceName, piece: Piece) -> None:
        """Raise ValueError where the files of a piece are not those that its marker describes."""
        notes = name.path(self.folder, ".npz")
        digests = {notes: piece.notes_sha256}
        for split, file in piece.files.items():
            tokens, index = name.shard(self.folder, split)
            digests |= {tokens: file.sha256, index: file.index_sha256}
        for path, digest in digests.items():
            if not has_sha256(path, digest):
                raise ValueError(f"{path.name} has changed")
        known = {*SPLITS}
        if piece.files.keys() - known or known != {*piece.excerpts}:
            raise ValueError("it has other splits")
        with np.load(notes) as stored:
            for split, file in piece.files.items():
                offsets = np.load(name.shard(self.folder, split)[1], mmap_mode="r")
                counts = len(stored[f"{split}_digests"]), len(offsets) - 1, int(offsets[-1])
                if counts != (file.documents, file.documents, file.tokens):
                    raise ValueError(f"its {split} split has other documents")

    def remove_others(self, keep: set[str]) -> None:
        """Remove all of the folder but the files of the pieces and those named in `keep`."""
        known = tuple(name.path(self.folder, "").name for name in self._pieces)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in keep and not path.name.startswith(known):
                path.unlink()

    def merge(self, out: Path, dtype: np.dtype, *, keep_duplicates: bool) -> dict[str, SplitInfo]:
        """Write the shards of all pieces to `out` without what repeats documents before it.

        Dropped are also documents without any token.
        """
        digests = {split: self._notes(split, "digests") for split in SPLITS}
        merged: dict[str, SplitInfo] = {}
        for split in SPLITS:
            overlap = np.zeros(len(digests[split]), dtype=bool)
            repeats = np.full(len(overlap), not keep_duplicates)
            repeats[np.unique(digests[split], return_index=True)[1]] = False
            if split == TRAIN:
                overlap = np.isin(digests[TRAIN], digests[VALIDATION])
            repeats &= ~overlap
            fresh = ~(overlap | repeats)
            files, excerpts = self._merge_split(out, split, dtype, fresh)
            merged[split] = SplitInfo(
                documents=sum(file.documents for file in files),
                tokens=sum(file.tokens for file in files),
                text_bytes=int(self._notes(split, "sizes")[fresh].sum()),
                duplicates=int(repeats.sum()),
                overlap=int(overlap.sum()),
                excerpts=tuple(excerpts[:NUM_EXCERPTS]),
                files=tuple(files),
            )
        return merged

    def _merge_split(
        self, out: Path, split: str, dtype: np.dtype, fresh: Bools
    ) -> tuple[list[ShardFile], list[str]]:
        """Write the shards of a split: its files, and the excerpts of its documents."""
        files: list[ShardFile] = []
        excerpts: list[str] = []
        stop = 0
        for name, piece in self._sorted():
            if split not in piece.files:
                continue
            start, stop = stop, stop + piece.files[split].documents
            is_fresh = fresh[start:stop]
            excerpts += itertools.compress(piece.excerpts[split], is_fresh)
            tokens, index = name.shard(self.folder, split)
            offsets = np.load(index, mmap_mode="r")
            keep = is_fresh & (np.diff(offsets) > 0)
            if not keep.any():
                continue
            paths = shard_path(out, split, len(files)), index_path(out, split, len(files))
            if keep.all():
                _link(tokens, paths[0])
                _link(index, paths[1])
                files.append(piece.files[split])
            else:
                files.append(_copy_documents(tokens, offsets, keep, paths, dtype))
        return files, excerpts

    def _notes(self, split: str, what: str) -> NDArray:
        """The digests or the sizes of all documents of a split, in order."""
        arrays = [np.empty(0, np.uint64 if what == "digests" else np.int64)]
        for name, piece in self._sorted():
            if split in piece.files:
                with np.load(name.path(self.folder, ".npz")) as stored:
                    arrays.append(stored[f"{split}_{what}"])
        return np.concatenate(arrays)

    def _sorted(self) -> Iterator[tuple[PieceName, Piece]]:
        names = sorted(self._pieces, key=lambda name: (name.group, name.number))
        return ((name, self._pieces[name]) for name in names)


def _link(source: Path, target: Path) -> None:
    """A second name of a file, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)


def _copy_documents(
    tokens: Path, offsets: Ints, keep: Bools, paths: tuple[Path, Path], dtype: np.dtype
) -> ShardFile:
    """Copy a shard without some of its documents."""
    ids = np.memmap(tokens, dtype, mode="r")
    writer = ShardWriter(paths, dtype)
    for start in range(0, len(keep), _DOCUMENTS_AT_ONCE):
        some = keep[start : start + _DOCUMENTS_AT_ONCE]
        bounds = offsets[start : start + len(some) + 1]
        lengths = np.diff(bounds)
        block = ids[bounds[0] : bounds[-1]][np.repeat(some, lengths)]
        writer.append(block, np.cumsum(lengths[some]))
    return writer.finish()


class ShardWriter:
    """Appends documents to one shard, which appears when it is finished.

    The caller closes its `file` after an error.
    """

    def __init__(self, paths: tuple[Path, Path], dtype: np.dtype) -> None:
        self._path, self._index_path = paths
        # Two processes that make the same piece write the same bytes beside each other.
        self._temporary = self._path.with_suffix(f".{secrets.token_hex(4)}.tmp")
        self._dtype = dtype
        self.file = self._temporary.open("wb")
        self._offsets: list[Ints] = [np.zeros(1, dtype=np.int64)]
        self._tokens = 0

    def append(self, ids: NDArray, ends: Sequence[int] | Ints) -> None:
        """Append token ids; `ends` are the positions in `ids` at which documents end.

        Ids after the last end belong to a document that the next call continues.
        """
        self.file.write(ids.astype(self._dtype, copy=False).tobytes())
        self._offsets.append(np.asarray(ends, dtype=np.int64) + self._tokens)
        self._tokens += len(ids)

    def finish(self) -> ShardFile:
        """Close the shard, write its index, and flush both to the disk."""
        self.file.close()
        sync(self._temporary)
        os.replace(self._temporary, self._path)
        offsets = np.concatenate(self._offsets)
        with replace_file(self._index_path) as file:
            np.save(file, offsets)
        digests = sha256(self._path), sha256(self._index_path)
        return ShardFile(self._tokens, len(offsets) - 1, *digests)
