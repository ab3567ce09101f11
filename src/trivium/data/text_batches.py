"""From sources to token ids: the texts of every piece, read in order and encoded in batches.

Documents are read and assigned to splits in the calling thread; worker threads encode. A few
batches are in flight, so that memory is bounded whatever the size of the corpus.
"""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from trivium.data.batch import Ints
from trivium.data.documents import read_source
from trivium.data.pieces import OpenPiece, Piece, SourceGroup
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

EncodedBatch = tuple[NDArray, Ints]
"""Token ids, and the positions in them at which documents end."""
_Chunk = tuple[str, bool, bool]  # of a document, its first, its last


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


def read_pieces(
    plan: SplitSources, group: SourceGroup, done: Sequence[Piece], options: CorpusOptions
) -> Iterator[tuple[OpenPiece, Iterator[str]]]:
    """The pieces of a group after its finished ones, each with its texts, to be read in order."""
    last = done[-1] if done else Piece(group.sources)
    documents = _read_documents(group, options, last)
    number = len(done)
    while last.next_source < len(group.sources):
        last = OpenPiece(group, number)
        max_bytes = _piece_bytes(plan) << (number // _PIECES_OF_SIZE)
        yield last, last.read(documents, plan, max_bytes)
        number += 1


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


def encode_texts(
    texts: Iterable[str], tokenizer: Tokenizer, dtype: np.dtype
) -> Generator[EncodedBatch]:
    """Encode documents in worker threads, in order, a few batches at a time.

    The tokenizer's own threads use every core and release Python's lock. A document's ids may go on
    in the next batch.
    """
    waiting: collections.deque[Future[EncodedBatch]] = collections.deque()
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="encode") as pool:
        try:
            for batch in _batches(texts):
                waiting.append(pool.submit(_encode, batch, tokenizer, dtype))
                if len(waiting) > _BATCHES_IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _batches(texts: Iterable[str]) -> Iterator[list[_Chunk]]:
    """Documents that are encoded together; very long ones are cut."""
    batch: list[_Chunk] = []
    characters = 0
    for text in texts:
        chunks = list(cut_text(text, BATCH_CHARACTERS))
        for place, chunk in enumerate(chunks, start=1):
            batch.append((chunk, place == 1, place == len(chunks)))
            characters += len(chunk)
            if characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    yield batch


def _encode(batch: Sequence[_Chunk], tokenizer: Tokenizer, dtype: np.dtype) -> EncodedBatch:
    """Encode a batch. A document without any ids has no prefix and suffix either."""
    encoded = tokenizer.encode_ids_batch([text for text, _, _ in batch])
    flat: list[int] = []
    ends: list[int] = []
    for (_, first, last), ids in zip(batch, encoded):
        is_empty = first and last and not ids
        if first and not is_empty:
            flat.extend(tokenizer.prefix_ids)
        flat.extend(ids)
        if last and not is_empty:
            flat.extend(tokenizer.suffix_ids)
        if last:
            ends.append(len(flat))
    return np.fromiter(flat, dtype, len(flat)), np.array(ends, dtype=np.int64)
