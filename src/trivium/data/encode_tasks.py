"""Encoding tasks: groups of text sources whose documents one process encodes.

Documents are read in the calling thread and encoded in worker threads. Only a few batches are
encoded at a time, and long documents are split into chunks. Memory therefore does not grow with the
size of the corpus or of its documents.
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
_SHARDS_OF_SIZE = 32  # per task, before the size doubles: the size of a source may be unknown
_WORKERS = 2
_BATCHES_IN_FLIGHT = 3

EncodedBatch = list[tuple[NDArray, bool]]
"""One pair (token ids, is_last) per chunk. `is_last` is True for a document's last chunk."""


@dataclasses.dataclass(frozen=True)
class Task:
    """An encoding task: consecutive sources that one process encodes.

    The sources are a single large file, or several small files.
    """

    index: int
    sources: tuple[Source, ...]

    @property
    def size(self) -> int:
        """The total size of the sources in bytes, as stored."""
        return sum(source.size for source in self.sources)


def make_tasks(plan: SplitSources) -> list[Task]:
    """Divide the sources of a corpus into encoding tasks, in order.

    Sources are added to a task until their total size reaches the shard size. A source is never
    split.
    """
    tasks: list[Task] = []
    group: list[Source] = []
    size = 0
    for source in plan.sources:
        group.append(source)
        size += source.size
        if size >= choose_shard_size(plan) or source is plan.sources[-1]:
            tasks.append(Task(len(tasks), tuple(group)))
            group, size = [], 0
    return tasks


def choose_shard_size(plan: SplitSources, index: int = 0) -> int:
    """Return the approximate size of a shard in bytes of text.

    The size grows with the corpus, and with `index`, the index of the shard in its encoding task.
    """
    return max(SHARD_BYTES, plan.total_bytes // _SHARDS_OF_CORPUS) << (index // _SHARDS_OF_SIZE)


class TaskReader:
    """Reads the documents of an encoding task, one shard at a time.

    The attributes from `text_bytes` on describe the current shard.

    Args:
        plan: the sources of the corpus, with their splits.
        task: the encoding task.
        options: how documents are read.

    Attributes:
        skip: the number of documents that are in finished shards and are still to be skipped.
        read_bytes: how many bytes of the task's sources have been read.
        is_finished: whether all documents of the task have been read.
        text_bytes: the total UTF-8 size of the documents.
        digests: the hash of each document.
        sizes: the UTF-8 size of each document.
        in_validation: for each document, whether it belongs to the validation split.
        excerpts: for each split, the beginnings of the first documents.
    """

    def __init__(self, plan: SplitSources, task: Task, options: CorpusOptions) -> None:
        self.plan, self.task = plan, task
        self.skip = self.read_bytes = self.text_bytes = 0
        self.is_finished = False
        self._parts = self._read_parts(options)

    def _read_parts(self, options: CorpusOptions) -> Iterator[tuple[Source, str, bool]]:
        """Yield the documents of the task after the first `skip` documents.

        A document consists of one or more tuples (source, part, is_last); `is_last` is True for its
        last part.
        """
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
        """Yield the documents of the next shard in parts, as pairs (part, is_last).

        `is_last` is True for the last part of each document. The shard ends after the first
        document with which it has at least `max_bytes` bytes of text.
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
                split = self.plan.assign_split(source, value)
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
    """Tokenize texts in worker threads. Yields batches of encoded chunks, in order.

    `parts` are pairs (part of a document, is_last); `is_last` is True for the last part of each
    document. A document may continue in the next batch. Only a few batches are encoded at a time,
    because the tokenizer's own threads already use every core.
    """
    waiting: collections.deque[Future[EncodedBatch]] = collections.deque()
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="encode") as pool:
        try:
            for batch in _batch_chunks(
                split_texts(parts, tokenizer.encode_ids_batch, _CHUNK_CHARACTERS)
            ):
                waiting.append(pool.submit(_encode_chunks, batch, tokenizer))
                if len(waiting) > _BATCHES_IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _batch_chunks(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Group consecutive chunks into batches of about `BATCH_CHARACTERS` characters. Yields them."""
    batch: list[Chunk] = []
    characters = 0
    for chunk in chunks:
        batch.append(chunk)
        characters += len(chunk.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


def _encode_chunks(chunks: Sequence[Chunk], tokenizer: Tokenizer) -> EncodedBatch:
    """Encode a batch of text chunks. Returns a pair (token ids, is_last) for each chunk.

    The first chunk of a document begins with the tokenizer's prefix ids, and the last chunk ends
    with its suffix ids. If the text of a document has no token ids, neither is added.
    """
    encoded = tokenizer.encode_ids_batch([chunk.before + chunk.text for chunk in chunks])
    before = tokenizer.encode_ids_batch([chunk.before for chunk in chunks if chunk.before])
    lengths = iter(map(len, before))
    dtype = token_dtype(tokenizer.vocab_size)
    result: EncodedBatch = []
    for chunk, ids in zip(chunks, encoded):
        if chunk.before:
            ids = ids[next(lengths) :]
        elif ids or not chunk.is_last:
            ids = [*tokenizer.prefix_ids, *ids]
        if chunk.is_last and (chunk.before or ids):
            ids = [*ids, *tokenizer.suffix_ids]
        result.append((np.array(ids, dtype), chunk.is_last))
    return result
