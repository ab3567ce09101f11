"""Tasks: sources that are read together, and the encoding of their documents.

Documents are read in the calling thread and encoded in worker threads. Only a few batches are
encoded at a time, and long documents are cut into chunks, so that memory is bounded for any size of
the corpus and of its documents.
"""

from __future__ import annotations

import collections
import dataclasses
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from trivium.data.shards import TRAIN, VALIDATION, token_dtype
from trivium.data.sources import Source
from trivium.data.splitting import CorpusOptions, SplitSources, TextDigest
from trivium.text import Tokenizer
from trivium.text.chunks import Chunk, split_texts

SHARD_BYTES = 1 << 26
BATCH_CHARACTERS = 1 << 20
NUM_EXCERPTS = 4
_EXCERPT_CHARACTERS = 500
_CHUNK_CHARACTERS = 1 << 18
_SHARDS_OF_CORPUS = 128  # approximately; the limit on open files limits the number of shards
_SHARDS_OF_SIZE = 32  # of a task, before the size doubles: the size of a source may not be known
_WORKERS = 2
_BATCHES_IN_FLIGHT = 3

EncodedBatch = list[tuple[NDArray, bool]]
"""The token ids of chunks of documents, each with whether the chunk ends its document."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Consecutive sources that one process reads: a large file, or several small ones."""

    index: int
    sources: tuple[Source, ...]

    @property
    def size(self) -> int:
        """Bytes of the sources as stored."""
        return sum(source.size for source in self.sources)


def list_tasks(plan: SplitSources) -> list[Task]:
    """Return the sources in tasks of at least about a shard. A source is never in two tasks."""
    tasks: list[Task] = []
    some: list[Source] = []
    size = 0
    for source in plan.sources:
        some.append(source)
        size += source.size
        if size >= shard_bytes(plan) or source is plan.sources[-1]:
            tasks.append(Task(len(tasks), tuple(some)))
            some, size = [], 0
    return tasks


def shard_bytes(plan: SplitSources, index: int = 0) -> int:
    """Return the size of the text of a shard; `index` is the index of the shard in its task."""
    return max(SHARD_BYTES, plan.total_bytes // _SHARDS_OF_CORPUS) << (index // _SHARDS_OF_SIZE)


class TaskReader:
    """Read the documents of a task, and record the documents of its current shard.

    Args:
        plan: the sources of all tasks, with their splits.
        task: the task.
        options: how documents are read.

    Attributes:
        skip: the number of documents that are not read, since finished shards contain them.
        read_bytes: the number of bytes of the sources that have been read.
        is_finished: whether all documents of the task have been read.
        text_bytes: the UTF-8 size of the documents of the shard.
        digests, sizes, in_validation: the digest, the UTF-8 size and the split of each document.
        excerpts: the beginnings of the first documents of each split.
    """

    def __init__(self, plan: SplitSources, task: Task, options: CorpusOptions) -> None:
        self.plan, self.task = plan, task
        self.skip = self.read_bytes = self.text_bytes = 0
        self.is_finished = False
        self._parts = self._read(options)

    def _read(self, options: CorpusOptions) -> Iterator[tuple[Source, str, bool]]:
        """Yield the parts of all documents after the first `skip` documents."""
        before = 0
        for source in self.task.sources:
            num_bytes = 0
            for text, is_last in self.plan.read_parts(source, options):
                num_bytes += len(text.encode())
                self.read_bytes = before + min(num_bytes, source.size)
                if not self.skip:
                    yield source, text, is_last
                elif is_last:
                    self.skip -= 1
            before += source.size
        self.read_bytes, self.is_finished = before, True

    def read_shard(self, max_bytes: int) -> Iterator[tuple[str, bool]]:
        """Yield the texts of the next shard in parts, each with whether it ends a document.

        The shard ends after the document with which its text reaches `max_bytes`.
        """
        self.digests, self.sizes, self.in_validation = array("Q"), array("q"), array("b")
        self.excerpts: dict[str, list[str]] = {TRAIN: [], VALIDATION: []}
        self.text_bytes = 0
        digest, size, excerpt = TextDigest(), 0, ""
        for source, text, is_last in self._parts:
            digest.update(text)
            size += len(text.encode())
            excerpt = excerpt or text[:_EXCERPT_CHARACTERS]
            if is_last:
                value = digest.value
                split = self.plan.assign(source, value)
                if len(self.excerpts[split]) < NUM_EXCERPTS:
                    self.excerpts[split].append(excerpt)
                self.digests.append(value)
                self.sizes.append(size)
                self.in_validation.append(split == VALIDATION)
                self.text_bytes += size
                digest, size, excerpt = TextDigest(), 0, ""
            yield text, is_last
            if is_last and self.text_bytes >= max_bytes:
                return


def encode_texts(
    parts: Iterable[tuple[str, bool]], tokenizer: Tokenizer
) -> Generator[EncodedBatch]:
    """Encode documents, which are given in parts, in worker threads, a few batches at a time.

    The batches stay in order, and a document may continue in the next batch. The threads of the
    tokenizer use every core and release Python's lock.
    """
    waiting: collections.deque[Future[EncodedBatch]] = collections.deque()
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="encode") as pool:
        try:
            for batch in _batches(
                split_texts(parts, tokenizer.encode_ids_batch, _CHUNK_CHARACTERS)
            ):
                waiting.append(pool.submit(_encode, batch, tokenizer))
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


def _encode(batch: Sequence[Chunk], tokenizer: Tokenizer) -> EncodedBatch:
    """Encode a batch. A document without any ids gets no prefix and no suffix either."""
    encoded = tokenizer.encode_ids_batch([chunk.before + chunk.text for chunk in batch])
    before = tokenizer.encode_ids_batch([chunk.before for chunk in batch if chunk.before])
    lengths = iter(map(len, before))
    dtype = token_dtype(tokenizer.vocab_size)
    result: EncodedBatch = []
    for chunk, ids in zip(batch, encoded):
        if chunk.before:
            ids = ids[next(lengths) :]
        elif ids or not chunk.is_last:
            ids = [*tokenizer.prefix_ids, *ids]
        if chunk.is_last and (chunk.before or ids):
            ids = [*ids, *tokenizer.suffix_ids]
        result.append((np.array(ids, dtype), chunk.is_last))
    return result
