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
from trivium.data.pieces import OpenPiece, Piece, Pieces, SourceGroup
from trivium.data.sources import Source
from trivium.data.splitting import CorpusOptions, SplitSources
from trivium.text import Tokenizer
from trivium.text.reservoir import cut_text

BATCH_CHARACTERS = 1 << 20
PIECE_BYTES = 1 << 26
_PIECES_OF_CORPUS = 128  # about; pieces grow with the corpus, so that open files do not
_PIECES_OF_SIZE = 32  # of a group, after which they double: its size may not be known before
_WORKERS = 2
_BATCHES_IN_FLIGHT = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A document or, where it is very long, a part of one."""

    text: str
    first: bool
    last: bool


@dataclasses.dataclass(slots=True)
class TextBatch:
    """Chunks of one piece that are encoded together."""

    piece: OpenPiece
    read_bytes: int = 0
    text_bytes: int = 0
    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    characters: int = 0
    ends_piece: bool = False


# A batch with its ids, and the positions in them at which documents end.
EncodedBatch = tuple[TextBatch, NDArray, Ints]


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
    piece = OpenPiece(group, len(done))
    batch = TextBatch(piece)
    last = done[-1] if done else Piece(group.sources)
    for number, document, read_bytes, text in _read_documents(group, options, last):
        piece.add(text, number, document, plan.fraction)
        batch.read_bytes = before + read_bytes
        batch.text_bytes += piece.sizes[-1]
        chunks = list(cut_text(text, BATCH_CHARACTERS))
        for place, chunk in enumerate(chunks, start=1):
            batch.chunks.append(Chunk(chunk, place == 1, place == len(chunks)))
            batch.characters += len(chunk)
            if batch.characters >= BATCH_CHARACTERS:
                yield batch
                batch = TextBatch(piece, batch.read_bytes)
        if piece.text_bytes >= _piece_bytes(plan) << (piece.number // _PIECES_OF_SIZE):
            batch.ends_piece = True
            yield batch
            piece = OpenPiece(group, piece.number + 1)
            batch = TextBatch(piece)
    piece.next_source, piece.next_document = len(group.sources), 0
    batch.read_bytes, batch.ends_piece = before + group.size, True
    yield batch


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
) -> Generator[EncodedBatch]:
    """Encode batches in worker threads, in order, a few at a time.

    The tokenizer's own threads use every core and release Python's lock.
    """
    waiting: collections.deque[Future[EncodedBatch]] = collections.deque()
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="encode") as pool:
        try:
            for batch in batches:
                waiting.append(pool.submit(_encode, batch, tokenizer, dtype))
                if len(waiting) > _BATCHES_IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _encode(batch: TextBatch, tokenizer: Tokenizer, dtype: np.dtype) -> EncodedBatch:
    """Encode a batch. A document without any ids has no prefix and suffix either."""
    encoded = tokenizer.encode_ids_batch([chunk.text for chunk in batch.chunks])
    flat, ends = array.array("H" if dtype.itemsize == 2 else "I"), []
    for chunk, ids in zip(batch.chunks, encoded):
        is_empty = chunk.first and chunk.last and not ids
        if chunk.first and not is_empty:
            flat.extend(tokenizer.prefix_ids)
        flat.extend(ids)
        if chunk.last and not is_empty:
            flat.extend(tokenizer.suffix_ids)
        if chunk.last:
            ends.append(len(flat))
    ids = np.frombuffer(flat, dtype=dtype.newbyteorder("="))
    return batch, ids, np.array(ends, dtype=np.int64)
