"""From sources to token ids: the texts of every piece are read in order and encoded in batches.

Documents are read and assigned to splits in the calling thread, and encoded in worker threads. Only
a few batches are encoded at a time, and long documents are cut, so that memory is bounded for any
size of the corpus and of its documents.
"""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from trivium.data.batch import Ints
from trivium.data.pieces import OpenPiece, Piece, SourceGroup
from trivium.data.sources import Source
from trivium.data.splitting import CorpusOptions, SplitSources
from trivium.text import Tokenizer
from trivium.text.chunks import Chunk, cut_texts

BATCH_CHARACTERS = 1 << 20
PIECE_BYTES = 1 << 26
_PIECES_OF_CORPUS = 128  # about; pieces grow with the corpus, so that open files do not
_PIECES_OF_SIZE = 32  # of a group, after which they double: its size may not be known before
_WORKERS = 2
_BATCHES_IN_FLIGHT = 3

EncodedBatch = tuple[NDArray, Ints]
"""Token ids, and the positions at which documents end."""
_CHUNK_CHARACTERS = 1 << 18


def group_sources(plan: SplitSources) -> list[SourceGroup]:
    """Return the sources in groups of at least about a piece. A file is never in two groups."""
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


def read_pieces(
    plan: SplitSources, group: SourceGroup, done: Sequence[Piece], options: CorpusOptions
) -> Iterator[tuple[OpenPiece, Iterator[tuple[str, bool]]]]:
    """Yield the unfinished pieces of a group, each with the parts of its texts, in order."""
    last = done[-1] if done else Piece(group.sources)
    parts = _read_documents(plan, group, options, last)
    number = len(done)
    while last.next_source < len(group.sources):
        last = OpenPiece(group, number)
        max_bytes = _piece_bytes(plan) << (number // _PIECES_OF_SIZE)
        yield last, last.read(parts, plan, max_bytes)
        number += 1


def _read_documents(
    plan: SplitSources, group: SourceGroup, options: CorpusOptions, last: Piece
) -> Iterator[tuple[int, int, int, str, bool]]:
    """Yield the parts of the documents after the last finished piece.

    Each part comes after its source, the number of documents and the number of bytes that have been
    read, and before whether it is the last part of its document.
    """
    before = sum(source.size for source in group.sources[: last.next_source])
    for number in range(last.next_source, len(group.sources)):
        skip = last.next_document if number == last.next_source else 0
        num_bytes, document = 0, 1
        source = group.sources[number]
        for part, is_last in plan.read_parts(source, options):
            num_bytes += len(part.encode())
            if document > skip:
                yield number, document, before + min(num_bytes, source.size), part, is_last
            document += is_last
        before += source.size


def encode_texts(
    parts: Iterable[tuple[str, bool]], tokenizer: Tokenizer, dtype: np.dtype
) -> Generator[EncodedBatch]:
    """Encode documents, which are given in parts, in worker threads, a few batches at a time.

    The batches stay in order, and the ids of a document may continue in the next batch. The threads
    of the tokenizer use every core and release Python's lock.
    """
    waiting: collections.deque[Future[EncodedBatch]] = collections.deque()
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="encode") as pool:
        try:
            for batch in _batches(cut_texts(parts, tokenizer.encode_ids_batch, _CHUNK_CHARACTERS)):
                waiting.append(pool.submit(_encode, batch, tokenizer, dtype))
                if len(waiting) > _BATCHES_IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _batches(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Yield chunks in batches that are encoded together."""
    batch: list[Chunk] = []
    characters = 0
    for chunk in chunks:
        batch.append(chunk)
        characters += len(chunk.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


def _encode(batch: Sequence[Chunk], tokenizer: Tokenizer, dtype: np.dtype) -> EncodedBatch:
    """Encode a batch. A document without any ids gets no prefix and no suffix either."""
    encoded = tokenizer.encode_ids_batch([chunk.before + chunk.text for chunk in batch])
    before = tokenizer.encode_ids_batch([chunk.before for chunk in batch if chunk.before])
    lengths = iter(map(len, before))
    flat: list[int] = []
    ends: list[int] = []
    for chunk, ids in zip(batch, encoded):
        is_prefill = not chunk.before
        is_empty = is_prefill and chunk.is_last and not ids
        if is_prefill and not is_empty:
            flat.extend(tokenizer.prefix_ids)
        flat.extend(ids if is_prefill else ids[next(lengths) :])
        if chunk.is_last and not is_empty:
            flat.extend(tokenizer.suffix_ids)
        if chunk.is_last:
            ends.append(len(flat))
    return np.fromiter(flat, dtype, len(flat)), np.array(ends, dtype=np.int64)
