"""From sources to token ids: reading, splitting and encoding as one ordered stream of batches.

Documents are read and assigned to splits in the calling thread; worker threads encode. A few
batches are in flight, so that memory is bounded whatever the size of the corpus.
"""

from __future__ import annotations

import array
import collections
import dataclasses
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from trivium.data.documents import read_source
from trivium.data.pieces import NUM_EXCERPTS, SPLITS, CorpusCounts, Piece
from trivium.data.splitting import (
    CorpusOptions,
    Deduplicator,
    SplitSources,
    cut_text,
    text_digest,
)
from trivium.text import Tokenizer

BATCH_CHARACTERS = 1 << 20
PIECE_BYTES = 1 << 26
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
    """Chunks that are encoded together.

    The last batch of a piece holds its marker, without files, and the digests of its documents.
    """

    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    characters: int = 0
    text_bytes: int = 0
    read_bytes: int = 0
    piece: Piece | None = None
    digests: dict[str, list[int]] = dataclasses.field(default_factory=dict)


# The ids of a batch by split, with the positions at which documents end.
SplitTokens = dict[str, tuple[NDArray, NDArray[np.int64]]]


def read_batches(
    plan: SplitSources,
    options: CorpusOptions,
    deduplicator: Deduplicator,
    last: Piece,
    num_pieces: int,
) -> Iterator[TextBatch]:
    """Read the documents to keep, in batches and pieces.

    Args:
        plan: the sources with their splits.
        options: how documents are read.
        deduplicator: assigns the splits; it knows the documents of all finished pieces.
        last: the last finished piece, behind which reading begins.
        num_pieces: how many pieces are finished.
    """
    batch, piece_bytes = TextBatch(), 0
    text_bytes = dict(last.counts.text_bytes)
    digests: dict[str, list[int]] = {split: [] for split in SPLITS}
    excerpts: dict[str, list[str]] = {split: [] for split in SPLITS}

    def end_piece(next_source: int, next_document: int) -> TextBatch:
        batch.piece = Piece(
            sources=plan.infos[last.next_source : next_source + (next_document > 0)],
            next_source=next_source,
            next_document=next_document,
            excerpts={split: tuple(texts) for split, texts in excerpts.items()},
            counts=CorpusCounts(
                dict(text_bytes), dict(deduplicator.duplicates), deduplicator.overlap
            ),
        )
        batch.digests = digests
        return batch

    for number, document, read_bytes, text in _read_documents(plan, options, last):
        digest, size = text_digest(text)
        split = deduplicator.assign(digest, plan.sources[number][1])
        if split is None:
            continue
        digests[split].append(digest)
        if len(excerpts[split]) < NUM_EXCERPTS:
            excerpts[split].append(text[:_EXCERPT_CHARACTERS])
        batch.text_bytes += size
        text_bytes[split] += size
        piece_bytes += size
        chunks = list(cut_text(text, BATCH_CHARACTERS))
        for place, chunk in enumerate(chunks, start=1):
            batch.chunks.append(Chunk(chunk, split, place == 1, place == len(chunks)))
            batch.characters += len(chunk)
            batch.read_bytes = read_bytes
            if batch.characters >= BATCH_CHARACTERS:
                yield batch
                batch = TextBatch()
        # Pieces grow with the corpus, so that their number, and that of open files, does not.
        if piece_bytes >= PIECE_BYTES << num_pieces // 32:
            batch.read_bytes = read_bytes
            yield end_piece(number, document)
            assert batch.piece is not None
            last, batch = batch.piece, TextBatch()
            num_pieces, piece_bytes = num_pieces + 1, 0
            digests = {split: [] for split in SPLITS}
            excerpts = {split: [] for split in SPLITS}
    batch.read_bytes = plan.total_bytes
    yield end_piece(len(plan.sources), 0)


def _read_documents(
    plan: SplitSources, options: CorpusOptions, last: Piece
) -> Iterator[tuple[int, int, int, str]]:
    """Behind the last finished piece: source, documents read of it, bytes read, text."""
    before = sum(source.size for source, _ in plan.sources[: last.next_source])
    for number in range(last.next_source, len(plan.sources)):
        skip = last.next_document if number == last.next_source else 0
        characters = 0
        source, _ = plan.sources[number]
        for document, text in enumerate(read_source(source, options), start=1):
            characters += len(text)
            if document > skip:
                yield number, document, before + min(characters, source.size), text
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
    """Encode a batch. A document without any ids is left out."""
    encoded = tokenizer.encode_ids_batch([chunk.text for chunk in batch.chunks])
    prefix, suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    tokens: dict[str, list[int]] = {}
    ends: dict[str, list[int]] = {}
    for chunk, ids in zip(batch.chunks, encoded):
        if chunk.first and chunk.last and not ids:
            continue
        flat = tokens.setdefault(chunk.split, [])
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
