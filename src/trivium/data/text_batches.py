"""From sources to token ids: reading, splitting and encoding as one ordered stream of batches.

Documents are read and assigned to splits in the calling thread; worker threads encode. A few
batches are in flight, so that memory is bounded whatever the size of the corpus.
"""

from __future__ import annotations

import array
import collections
import dataclasses
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from trivium.data.batch import Ints
from trivium.data.documents import read_source
from trivium.data.pieces import (
    NUM_EXCERPTS,
    SPLITS,
    Piece,
    PieceName,
    Pieces,
    SourceGroup,
    SplitNotes,
)
from trivium.data.sources import Source
from trivium.data.splitting import (
    CorpusOptions,
    SplitSources,
    hash_split,
    text_digest,
)
from trivium.text import Tokenizer

BATCH_CHARACTERS = 1 << 20
PIECE_BYTES = 1 << 26
_PIECES_OF_CORPUS = 128  # about; pieces grow with the corpus, so that open files do not
_PIECES_OF_SIZE = 32  # of a group, after which they double: its size may not be known before
_EXCERPT_CHARACTERS = 500
_WORKERS = 2
_BATCHES_IN_FLIGHT = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A document or, where it is very long, a part of one."""

    text: str
    split: str
    first: bool
    last: bool


@dataclasses.dataclass(slots=True)
class TextBatch:
    """Chunks of one piece that are encoded together.

    The last batch of a piece holds its marker, without files, and notes on its documents.
    """

    name: PieceName
    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    characters: int = 0
    text_bytes: int = 0
    read_bytes: int = 0
    piece: Piece | None = None
    notes: dict[str, SplitNotes] = dataclasses.field(default_factory=dict)


# The ids of a batch by split, with the positions at which documents end.
SplitTokens = dict[str, tuple[NDArray, Ints]]


def group_sources(plan: SplitSources) -> list[SourceGroup]:
    """The sources in groups of about a piece or more: a file is never in two groups."""
    groups: list[SourceGroup] = []
    some: list[Source] = []
    size = 0
    for source in plan.sources:
        some.append(source)
        size += source.size
        if size >= _piece_bytes(plan) or source is plan.sources[-1]:
            groups.append(SourceGroup(len(groups), tuple(some)))
            some, size = [], 0
    return groups


def _piece_bytes(plan: SplitSources) -> int:
    return max(PIECE_BYTES, plan.total_bytes // _PIECES_OF_CORPUS)


def read_batches(
    plan: SplitSources, groups: Sequence[SourceGroup], pieces: Pieces, options: CorpusOptions
) -> Iterator[TextBatch]:
    """Read what the finished pieces of some groups do not have, in batches and pieces."""
    before = 0
    for group in groups:
        done = pieces.of(group)
        if not (done and done[-1].ends_group):
            yield from _read_group(plan, group, done, options, before)
        before += group.size


def _read_group(
    plan: SplitSources,
    group: SourceGroup,
    done: Sequence[Piece],
    options: CorpusOptions,
    before: int,
) -> Iterator[TextBatch]:
    """Read a group behind its finished pieces; `before` are the bytes of the groups before it."""
    piece = _OpenPiece(group, len(done), plan.fraction)
    batch = TextBatch(piece.name)
    last = done[-1] if done else Piece(group.infos)
    for number, document, read_bytes, text in _read_documents(group, options, last):
        split, size = piece.add(text, group.sources[number].split)
        batch.read_bytes = before + read_bytes
        batch.text_bytes += size
        chunks = list(cut_text(text, BATCH_CHARACTERS))
        for place, chunk in enumerate(chunks, start=1):
            batch.chunks.append(Chunk(chunk, split, place == 1, place == len(chunks)))
            batch.characters += len(chunk)
            if batch.characters >= BATCH_CHARACTERS:
                yield batch
                batch = TextBatch(piece.name, read_bytes=batch.read_bytes)
        if piece.text_bytes >= _piece_bytes(plan) << (piece.name.number // _PIECES_OF_SIZE):
            yield piece.end(batch, number, document)
            piece = _OpenPiece(group, piece.name.number + 1, plan.fraction)
            batch = TextBatch(piece.name)
    batch.read_bytes = before + group.size
    yield piece.end(batch, len(group.sources), 0)


def cut_text(text: str, limit: int) -> Iterator[str]:
    """A text in chunks of at most `limit` characters, cut after line feeds, else before spaces."""
    start = 0
    while len(text) - start > limit:
        stop = text.rfind("\n", start, start + limit) + 1
        if stop <= start:
            space = text.rfind(" ", start, start + limit)
            stop = space if space > start else start + limit
        yield text[start:stop]
        start = stop
    yield text[start:]


class _OpenPiece:
    """A piece while it is read: the splits of its documents, and what is noted of them."""

    def __init__(self, group: SourceGroup, number: int, fraction: float) -> None:
        self.name = PieceName(group.number, number)
        self.text_bytes = 0
        self._infos, self._fraction = group.infos, fraction
        self._notes = {split: SplitNotes() for split in SPLITS}

    def add(self, text: str, assigned: str | None) -> tuple[str, int]:
        """The split of a document, and its size."""
        digest, size = text_digest(text)
        self.text_bytes += size
        split = assigned or hash_split(digest, self._fraction)
        notes = self._notes[split]
        notes.digests.append(digest)
        notes.sizes.append(size)
        if len(notes.excerpts) < NUM_EXCERPTS:
            notes.excerpts.append(text[:_EXCERPT_CHARACTERS])
        return split, size

    def end(self, batch: TextBatch, next_source: int, next_document: int) -> TextBatch:
        """The last batch of the piece, with its marker."""
        batch.notes = self._notes
        batch.piece = Piece(
            self._infos,
            next_source,
            next_document,
            excerpts={split: tuple(notes.excerpts) for split, notes in self._notes.items()},
        )
        return batch


def _read_documents(
    group: SourceGroup, options: CorpusOptions, last: Piece
) -> Iterator[tuple[int, int, int, str]]:
    """Behind the last finished piece: source, documents read of it, bytes read, text."""
    before = sum(source.size for source in group.sources[: last.next_source])
    for number in range(last.next_source, len(group.sources)):
        skip = last.next_document if number == last.next_source else 0
        num_bytes = 0
        source = group.sources[number]
        for document, text in enumerate(read_source(source, options), start=1):
            num_bytes += len(text.encode())
            if document > skip:
                yield number, document, before + min(num_bytes, source.size), text
        before += source.size


def encode_batches(
    batches: Iterator[TextBatch], tokenizer: Tokenizer, dtype: np.dtype
) -> Generator[tuple[TextBatch, SplitTokens]]:
    """Encode batches in worker threads, in order, a few at a time.

    The tokenizer's own threads use every core and release Python's lock.
    """
    waiting: collections.deque[tuple[TextBatch, Future[SplitTokens]]] = collections.deque()
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="encode") as pool:
        try:
            for batch in batches:
                waiting.append((batch, pool.submit(_encode, batch, tokenizer, dtype)))
                if len(waiting) > _BATCHES_IN_FLIGHT:
                    batch, future = waiting.popleft()
                    yield batch, future.result()
            while waiting:
                batch, future = waiting.popleft()
                yield batch, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _encode(batch: TextBatch, tokenizer: Tokenizer, dtype: np.dtype) -> SplitTokens:
    """Encode a batch. A document without any ids has no prefix and suffix either."""
    encoded = tokenizer.encode_ids_batch([chunk.text for chunk in batch.chunks])
    prefix, suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    tokens: dict[str, list[int]] = {}
    ends: dict[str, list[int]] = {}
    for chunk, ids in zip(batch.chunks, encoded):
        flat = tokens.setdefault(chunk.split, [])
        if chunk.first and chunk.last and not ids:
            ends.setdefault(chunk.split, []).append(len(flat))
            continue
        if chunk.first:
            flat += prefix
        flat += ids
        if chunk.last:
            flat += suffix
            ends.setdefault(chunk.split, []).append(len(flat))
    code = "H" if dtype.itemsize == 2 else "I"
    return {
        split: (
            np.frombuffer(array.array(code, flat), dtype=dtype.newbyteorder("=")),
            np.array(ends.get(split, []), dtype=np.int64),
        )
        for split, flat in tokens.items()
    }
