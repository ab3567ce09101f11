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
from trivium.data.pieces import SPLITS, CorpusCounts, Piece
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
    """Chunks that are encoded together, and the digests of their documents by split.

    The last batch of a piece holds the position behind it and the counts up to there.
    """

    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    digests: dict[str, list[int]] = dataclasses.field(
        default_factory=lambda: {split: [] for split in SPLITS}
    )
    characters: int = 0
    text_bytes: int = 0
    read_bytes: int = 0
    piece_end: tuple[int, int] | None = None
    counts: CorpusCounts | None = None


# The ids of a batch by split, with the positions at which documents end.
SplitTokens = dict[str, tuple[NDArray, NDArray[np.int64]]]


class CorpusReader:
    """Reads the documents to keep, in batches and pieces.

    Args:
        plan: the sources with their splits.
        options: how documents are read.
        deduplicator: assigns the splits; it knows the documents of all finished pieces.
        last: the last finished piece, behind which reading begins.
        num_pieces: how many pieces are finished.
    """

    def __init__(
        self,
        plan: SplitSources,
        options: CorpusOptions,
        deduplicator: Deduplicator,
        last: Piece,
        num_pieces: int,
    ) -> None:
        self.plan = plan
        self.options = options
        self.deduplicator = deduplicator
        self.last = last
        self.num_pieces = num_pieces

    def batches(self) -> Iterator[TextBatch]:
        """The documents from the last finished piece on."""
        text_bytes = dict(self.last.counts.text_bytes)
        pieces, piece_bytes = self.num_pieces, 0
        batch = TextBatch()
        for number, document, read_bytes, text in self._read_documents():
            digest, size = text_digest(text)
            split = self.deduplicator.assign(digest, self.plan.sources[number][1])
            if split is None:
                continue
            batch.digests[split].append(digest)
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
            if piece_bytes >= PIECE_BYTES << pieces // 32:
                yield self._end_piece(batch, (number, document), read_bytes, text_bytes)
                batch = TextBatch()
                pieces, piece_bytes = pieces + 1, 0
        yield self._end_piece(batch, (len(self.plan.sources), 0), self.plan.total_bytes, text_bytes)

    def _end_piece(
        self, batch: TextBatch, end: tuple[int, int], read_bytes: int, text_bytes: dict[str, int]
    ) -> TextBatch:
        """The batch as the last one of a piece."""
        batch.read_bytes = read_bytes
        batch.piece_end = end
        batch.counts = CorpusCounts(
            dict(text_bytes), dict(self.deduplicator.duplicates), self.deduplicator.overlap
        )
        return batch

    def _read_documents(self) -> Iterator[tuple[int, int, int, str]]:
        """From the last finished piece on: source, documents read of it, bytes read, text."""
        start = self.last
        before = sum(source.size for source, _ in self.plan.sources[: start.next_source])
        for number in range(start.next_source, len(self.plan.sources)):
            skip = start.next_document if number == start.next_source else 0
            characters = 0
            source, _ = self.plan.sources[number]
            for document, text in enumerate(read_source(source, self.options), start=1):
                characters += len(text)
                if document > skip:
                    read = before + min(characters, source.size)
                    yield number, document, read, text
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
