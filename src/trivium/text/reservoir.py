"""Reads text files in blocks, and samples texts for training a tokenizer."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from trivium.files import open_text

CHUNK = 1 << 14  # the maximum number of characters of a sampled chunk
BLOCK = 1 << 16  # characters read from a file at a time


def reservoir_sample(texts: Iterable[str], max_bytes: int, *, seed: int = 0) -> list[str]:
    """Return a uniform random sample of the texts, with at most `max_bytes` bytes of UTF-8.

    The texts are iterated once, and only the sample is in memory. Long texts are split into chunks,
    so that every part of the corpus has the same chance. Each chunk gets a random number, and the
    chunks with the smallest numbers are kept. They are returned in their original order.

    >>> reservoir_sample(["one", "two", "three"], 100)
    ['one', 'two', 'three']
    """
    rng = random.Random(seed)
    chunks = itertools.chain.from_iterable(split_text(text, CHUNK) for text in texts if text)
    heap: list[tuple[float, int, str, int]] = []  # (-priority, position, text, bytes)
    total = 0
    threshold = 1.0
    for position, text in enumerate(chunks):
        priority = rng.random()
        if priority >= threshold:
            continue
        size = len(text.encode("utf-8", errors="replace"))
        heapq.heappush(heap, (-priority, position, text, size))
        total += size
        while total > max_bytes and len(heap) > 1:
            dropped, _, _, size = heapq.heappop(heap)
            total -= size
            threshold = -dropped
    return [text for _, _, text, _ in sorted(heap, key=lambda entry: entry[1])]


def split_text(text: str, limit: int) -> Iterator[str]:
    """Split a text into chunks of at most `limit` characters.

    If possible, a chunk ends after a line feed, otherwise before a space. A chunk without either is
    split at the limit.
    """
    start = 0
    while len(text) - start > limit:
        stop = text.rfind("\n", start, start + limit) + 1
        if stop <= start:
            space = text.rfind(" ", start, start + limit)
            stop = space if space > start else start + limit
        yield text[start:stop]
        start = stop
    yield text[start:]


def read_blocks(paths: Iterable[str | Path]) -> Iterator[str]:
    """Yield the content of text files in blocks of whole lines, about `BLOCK` characters each.

    Raises DataError if a file cannot be read.
    """
    for path in paths:
        with open_text(path) as file:
            while block := file.read(BLOCK):
                yield block + file.readline()
