"""Pieces of an unfinished preparation, and how they are merged.

The sources are divided into groups, and the texts of a group into pieces of about 64 MB. A finished
piece is a folder with the tokens of its documents, in order, and with what decides the splits and
the repeats of documents. A piece does not depend on other pieces, so that processes and machines
can make pieces in any order. Repeats of earlier documents are dropped when the pieces are merged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from trivium.data.batch import Bools, Ints
from trivium.data.shards import (
    VALIDATION,
    ShardFile,
    SplitInfo,
    counts_path,
    index_path,
    shard_path,
)
from trivium.data.sources import Source
from trivium.data.splitting import SplitSources, TextDigest
from trivium.errors import DataError, shorten
from trivium.files import has_sha256, replace_folder, sha256, write_json

MARKER, TOKENS, NOTES = "piece.json", "tokens.bin", "documents.npz"
_NOTES_OF_A_DOCUMENT = [("digest", "<u8"), ("size", "<i8"), ("heldout", "?")]
_NUM_EXCERPTS, _EXCERPT_CHARACTERS = 4, 500
_TOKENS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class SourceGroup:
    """Consecutive sources that one process reads: a large file, or several small ones."""

    number: int
    sources: tuple[Source, ...]

    @property
    def size(self) -> int:
        """Bytes of the sources as stored."""
        return sum(source.size for source in self.sources)


@dataclasses.dataclass(eq=False)
class OpenPiece:
    """A piece while its documents are read.

    Args:
        group: the sources of the piece.
        number: the number of the piece in its group.
        next_source: the source in which the next piece begins.
        next_document: the number of documents of this source before the next piece.
        documents: digest, UTF-8 size and whether it is for validation, of every document in order.
        excerpts: the beginnings of the first documents of each split, by number.
        text_bytes: the UTF-8 size of the documents.
        read_bytes: the number of bytes of the group's sources that have been read.
    """

    group: SourceGroup
    number: int
    next_source: int = 0
    next_document: int = 0
    documents: list[tuple[int, int, bool]] = dataclasses.field(default_factory=list)
    excerpts: dict[int, str] = dataclasses.field(default_factory=dict)
    text_bytes: int = 0
    read_bytes: int = 0

    def read(
        self, parts: Iterator[tuple[int, int, int, str, bool]], plan: SplitSources, max_bytes: int
    ) -> Iterator[tuple[str, bool]]:
        """Yield the next texts of the group in parts, up to `max_bytes`, and record the documents.

        Each part comes with the number of its source, of the documents and of the bytes that have
        been read, and with whether it is the last part of its document.
        """
        digest, size, excerpt = TextDigest(), 0, ""
        for self.next_source, self.next_document, self.read_bytes, part, is_last in parts:
            digest.update(part)
            size += len(part.encode())
            excerpt = excerpt or part[:_EXCERPT_CHARACTERS]
            if is_last:
                value, source = digest.value, self.group.sources[self.next_source]
                heldout = plan.assign(source, value) == VALIDATION
                if sum(self.documents[n][2] == heldout for n in self.excerpts) < _NUM_EXCERPTS:
                    self.excerpts[len(self.documents)] = excerpt
                self.documents.append((value, size, heldout))
                self.text_bytes += size
                digest, size, excerpt = TextDigest(), 0, ""
            yield part, is_last
            if is_last and self.text_bytes >= max_bytes:
                return
        self.next_source, self.next_document = len(self.group.sources), 0
        self.read_bytes = self.group.size


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The marker of a finished piece.

    `sources` are all sources of its group. The next piece of the group begins after
    `next_document` documents of source `next_source`. `excerpts` are the beginnings of the first
    documents of each split, by number.
    """

    sources: tuple[Source, ...]
    next_source: Annotated[int, Field(ge=0)] = 0
    next_document: Annotated[int, Field(ge=0)] = 0
    tokens: int = 0
    documents: int = 0
    excerpts: dict[Annotated[int, Field(ge=0)], str] = dataclasses.field(default_factory=dict)
    tokens_sha256: str = ""
    notes_sha256: str = ""


class Pieces:
    """The finished pieces in a work folder, by the number of the group and of the piece."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.folder, self.dtype = folder, dtype
        self._pieces: dict[tuple[int, int], Piece] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    def total(self, what: str) -> int:
        """Return how many "tokens" or "documents" all pieces have."""
        return sum(getattr(piece, what) for piece in self._pieces.values())

    def of(self, group: SourceGroup) -> list[Piece]:
        """Return the finished pieces of a group, in order."""
        return [piece for (number, _), piece in self._pieces.items() if number == group.number]

    def path(self, group: int, number: int) -> Path:
        """Return the folder of a piece."""
        return self.folder / f"piece-{group:05}-{number:04}"

    @contextlib.contextmanager
    def writing(self, open_piece: OpenPiece) -> Iterator[Callable[[NDArray, Ints], None]]:
        """Write a piece, whose documents have all been read when the block ends.

        The block calls the function that is yielded with ids of tokens, and with the positions at
        which documents end. Ids after the last end belong to a document that the next call
        continues.
        """
        key = open_piece.group.number, open_piece.number
        with replace_folder(self.path(*key)) as folder:
            tokens, notes = folder / TOKENS, folder / NOTES
            offsets = [np.zeros(1, dtype=np.int64)]
            with tokens.open("wb") as file:

                def append(ids: NDArray, ends: Ints) -> None:
                    offsets.append(ends + file.tell() // self.dtype.itemsize)
                    file.write(ids.tobytes())

                yield append
            documents = np.array(open_piece.documents, _NOTES_OF_A_DOCUMENT)
            np.savez(notes, offsets=np.concatenate(offsets), documents=documents)
            piece = Piece(
                open_piece.group.sources,
                open_piece.next_source,
                open_piece.next_document,
                tokens=tokens.stat().st_size // self.dtype.itemsize,
                documents=len(documents),
                excerpts=open_piece.excerpts,
                tokens_sha256=sha256(tokens),
                notes_sha256=sha256(notes),
            )
            write_json(folder / MARKER, dataclasses.asdict(piece))
        self._pieces[key] = piece

    def load(self, group: SourceGroup) -> None:
        """Load the pieces of a group, if they were made from its present sources.

        Raises DataError if a piece is damaged.
        """
        number = 0
        while (marker := self.path(group.number, number) / MARKER).is_file():
            try:
                piece = TypeAdapter(Piece).validate_json(marker.read_bytes())
                if piece.sources != group.sources:
                    return
                _verify(marker.parent, piece)
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{marker}: this finished piece is damaged ({shorten(str(error), 200)}). "
                    f"Remove {self.folder} to begin anew."
                ) from error
            self._pieces[group.number, number] = piece
            number += 1

    def remove_others(self, keep: set[str]) -> None:
        """Remove everything in the folder except the pieces and the files named in `keep`."""
        known = keep | {self.path(*key).name for key in self._pieces}
        for path in self.folder.iterdir():
            if path.name not in known:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def merge(
        self,
        out: Path,
        splits: Sequence[str],
        vocab_size: int,
        *,
        keep_duplicates: bool,
        not_in_training: Collection[int] = (),
    ) -> dict[str, SplitInfo]:
        """Write the shards of all pieces and their token counts to `out`.

        Repeats of earlier documents are dropped, and so are documents without any token and
        training documents whose digest is in `not_in_training`.
        """
        documents = np.concatenate([self._notes(key)["documents"] for key in sorted(self._pieces)])
        digests, heldout = documents["digest"], documents["heldout"]
        elsewhere = np.fromiter(not_in_training, np.uint64, len(not_in_training))
        overlap = ~heldout & np.isin(digests, np.concatenate((digests[heldout], elsewhere)))
        merged: dict[str, SplitInfo] = {}
        for split in splits:
            own = heldout if split == VALIDATION else ~heldout
            repeats = own & ~overlap & (not keep_duplicates)
            _, first = np.unique(digests[own], return_index=True)
            repeats[np.flatnonzero(own)[first]] = False
            fresh = own & ~overlap & ~repeats
            counts = np.zeros(vocab_size, dtype=np.int64)
            files, excerpts = self._merge_split(out, split, fresh, counts)
            np.save(counts_path(out, split), counts)
            merged[split] = SplitInfo(
                documents=sum(file.documents for file in files),
                tokens=sum(file.tokens for file in files),
                text_bytes=int(documents["size"][fresh].sum()),
                duplicates=int(repeats.sum()),
                overlap=int((own & overlap).sum()),
                excerpts=tuple(excerpts[:_NUM_EXCERPTS]),
                files=tuple(files),
            )
        return merged

    def _merge_split(
        self, out: Path, split: str, fresh: Bools, counts: Ints
    ) -> tuple[list[ShardFile], list[str]]:
        """Write the shards of `fresh` documents and count their tokens.

        Returns the files and excerpts of the shards.
        """
        files: list[ShardFile] = []
        excerpts: list[str] = []
        stop = 0
        for key, piece in sorted(self._pieces.items()):
            start, stop = stop, stop + piece.documents
            keep = fresh[start:stop]
            excerpts += [text for number, text in piece.excerpts.items() if keep[number]]
            offsets = self._notes(key)["offsets"]
            keep = keep & (np.diff(offsets) > 0)
            if keep.any():
                paths = shard_path(out, split, len(files)), index_path(out, split, len(files))
                blocks = _read_tokens(self.path(*key) / TOKENS, self.dtype)
                files.append(_copy_documents(blocks, offsets, keep, paths, counts))
        return files, excerpts

    def _notes(self, key: tuple[int, int]) -> dict[str, NDArray]:
        """Return what is stored about the documents of a piece, and the offsets of their tokens."""
        with np.load(self.path(*key) / NOTES) as notes:
            return dict(notes)


def _verify(folder: Path, piece: Piece) -> None:
    """Raise ValueError if the files of a piece are not those that its marker describes."""
    for name, digest in ((TOKENS, piece.tokens_sha256), (NOTES, piece.notes_sha256)):
        if not has_sha256(folder / name, digest):
            raise ValueError(f"{name} has changed")
    with np.load(folder / NOTES) as notes:
        counts = len(notes["documents"]), int(notes["offsets"][-1])
    if counts != (piece.documents, piece.tokens) or max(piece.excerpts, default=-1) >= counts[0]:
        raise ValueError("it has other documents")


def _read_tokens(path: Path, dtype: np.dtype) -> Iterator[NDArray]:
    """Yield the tokens of a piece in blocks. (A memory map of the file would count as memory.)"""
    with path.open("rb") as file:
        while len(block := np.fromfile(file, dtype, _TOKENS_AT_ONCE)):
            yield block


def _copy_documents(
    blocks: Iterator[NDArray], offsets: Ints, keep: Bools, paths: tuple[Path, Path], counts: Ints
) -> ShardFile:
    """Write a shard of the documents that `keep` selects, and count their tokens.

    The tokens of the piece come in blocks.
    """
    lengths = np.diff(offsets)
    with paths[0].open("wb") as file:
        start = 0
        for block in blocks:
            bounds = np.clip(offsets, start, start + len(block))
            start += len(block)
            block = block[np.repeat(keep, np.diff(bounds))]
            counts += np.bincount(block, minlength=len(counts))
            file.write(block.tobytes())
    np.save(paths[1], np.concatenate(([0], np.cumsum(lengths[keep]))))
    digests = sha256(paths[0]), sha256(paths[1])
    return ShardFile(int(lengths[keep].sum()), int(keep.sum()), *digests)
