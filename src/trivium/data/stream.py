"""From sources to token ids: reading, dividing and encoding as one ordered pipeline.

Reading runs in the calling thread; encoding runs in two worker threads, whose tokenizer calls use
every core and leave Python free. A few batches are in flight, so that memory is bounded.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trivium.data.formats import ReadOptions
from trivium.data.shards import TRAIN, VALIDATION
from trivium.data.sources import Source, read_source
from trivium.data.splits import Divider, Plan, text_digest

if TYPE_CHECKING:
    from trivium.text import Tokenizer

BATCH_CHARACTERS = 1 << 20
_WORKERS = 2
_IN_FLIGHT = 3


class FileDigest:
    """The size and sha256 of the bytes that have gone by."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()

    def update(self, data: bytes, /) -> None:
        """Take the next bytes."""
        self.size += len(data)
        self._sha256.update(data)

    def hexdigest(self) -> str:
        """The sha256 so far, "" where there were no bytes."""
        return self._sha256.hexdigest() if self.size else ""


@dataclasses.dataclass(slots=True)
class Place:
    """How far reading has come: JSON integers that a checkpoint keeps.

    `source` numbers the source being read and `document` the documents already taken from it;
    `finished` holds (size, sha256) of every source before it.
    """

    source: int = 0
    document: int = 0
    finished: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    duplicates: dict[str, int] = dataclasses.field(default_factory=dict)
    leaks: int = 0
    text_bytes: dict[str, int] = dataclasses.field(
        default_factory=lambda: {TRAIN: 0, VALIDATION: 0}
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A document or, where it is very long, a piece of one."""

    text: str
    split: str
    first: bool
    last: bool


@dataclasses.dataclass(slots=True)
class TextBatch:
    """Pieces that are encoded together, and the state after the last of them.

    `digests` holds those of the documents newly kept, by split. `place` is None inside a document.
    `read_bytes` counts the bytes of the sources, as stored, that have been read.
    """

    pieces: list[Piece] = dataclasses.field(default_factory=list)
    digests: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    place: Place | None = None
    read_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TokenBatch:
    """The ids of a text batch: for every split `(ids, ends)` as `SplitWriter.append` takes them."""

    tokens: dict[str, tuple[NDArray, NDArray[np.int64]]]
    batch: TextBatch


def read_batches(
    plan: Plan, options: ReadOptions, divider: Divider, start: Place
) -> Iterator[TextBatch]:
    """The documents to keep, from `start` on, in batches of about a million characters."""
    place = dataclasses.replace(start, finished=list(start.finished))
    place.text_bytes = dict(start.text_bytes)
    batch = TextBatch()
    size = 0
    for number in range(start.source, len(plan.sources)):
        source, given = plan.sources[number]
        digest = FileDigest()
        skip = start.document if number == start.source else 0
        place.source, place.document = number, skip
        before = sum(size for size, _ in place.finished)
        for text in itertools.islice(read_source(source, options, digest), skip, None):
            place.document += 1
            hashed, text_bytes = text_digest(text)
            split = divider.place(hashed, given)
            if split is None:
                continue
            place.text_bytes[split] += text_bytes
            batch.digests.setdefault(split, []).append(hashed)
            for piece in cut_pieces(text, split):
                batch.pieces.append(piece)
                size += len(piece.text)
                if size >= BATCH_CHARACTERS:
                    batch.read_bytes = before + digest.size
                    yield _closed(batch, place if piece.last else None, divider)
                    batch, size = TextBatch(), 0
        place.finished.append(_facts(source, digest))
    place.source, place.document = len(plan.sources), 0
    batch.read_bytes = sum(size for size, _ in place.finished)
    yield _closed(batch, place, divider)


def _facts(source: Source, digest: FileDigest) -> tuple[int, str]:
    """Size and sha256 of a source that has been read to its end."""
    return (digest.size or source.size, digest.hexdigest())


def _closed(batch: TextBatch, place: Place | None, divider: Divider) -> TextBatch:
    """The batch with a copy of the state as it is now."""
    if place is not None:
        batch.place = dataclasses.replace(
            place,
            finished=list(place.finished),
            duplicates=dict(divider.duplicates),
            leaks=divider.leaks,
            text_bytes=dict(place.text_bytes),
        )
    return batch


def cut_pieces(text: str, split: str) -> Iterator[Piece]:
    """A document in pieces of at most about a million characters, cut after line feeds.

    A document without line feeds is cut at spaces, or else anywhere. Only a tokenizer that sees
    across the cut (one that marks the beginning of a text) can give other ids there.
    """
    start = 0
    while len(text) - start > BATCH_CHARACTERS:
        limit = start + BATCH_CHARACTERS
        stop = text.rfind("\n", start, limit) + 1
        if stop <= start:
            space = text.rfind(" ", start, limit)
            stop = space if space > start else limit
        yield Piece(text[start:stop], split, first=start == 0, last=False)
        start = stop
    yield Piece(text[start:], split, first=start == 0, last=True)


def encode(batch: TextBatch, tokenizer: Tokenizer, dtype: np.dtype) -> TokenBatch:
    """Encode a batch; a whole document that gives no ids is left out."""
    encoded = tokenizer.encode_ids_batch([piece.text for piece in batch.pieces])
    prefix, suffix = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    flat: dict[str, list[int]] = {}
    ends: dict[str, list[int]] = {}
    for piece, ids in zip(batch.pieces, encoded):
        tokens = flat.setdefault(piece.split, [])
        stops = ends.setdefault(piece.split, [])
        if piece.first:
            if piece.last and not ids:
                continue
            tokens += prefix
        tokens += ids
        if piece.last:
            tokens += suffix
            stops.append(len(tokens))
    code = "H" if dtype.itemsize == 2 else "I"
    arrays = {}
    for split, tokens in flat.items():
        ids = np.frombuffer(array.array(code, tokens), dtype=dtype.newbyteorder("="))
        arrays[split] = (ids, np.array(ends[split], dtype=np.int64))
    return TokenBatch(arrays, batch)


def encode_batches(
    batches: Iterator[TextBatch], tokenizer: Tokenizer, dtype: np.dtype
) -> Iterator[TokenBatch]:
    """Encode batches in worker threads, handing them on in their order."""
    waiting: collections.deque[Future[TokenBatch]] = collections.deque()
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="encode") as pool:
        try:
            for batch in batches:
                waiting.append(pool.submit(encode, batch, tokenizer, dtype))
                if len(waiting) > _IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
