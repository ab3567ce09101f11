"""The texts a tokenizer is trained on: files in blocks, and a reservoir sample of them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from trivium.files import open_text

CHUNK = 1 << 14  # characters of a long text that are kept or dropped together
BLOCK = 1 << 16  # characters read from a file at a time


def reservoir_sample(texts: Iterable[str], max_bytes: int, *, seed: int = 0) -> list[str]:
    """A uniform sample of texts, read once, with at most `max_bytes` bytes of UTF-8 in memory.

    Every text draws a random number and those with the smallest numbers stay, in their order; long
    texts are split into chunks, so that each part of the corpus has the same chance.

    >>> reservoir_sample(["one", "two", "three"], 100)
    ['one', 'two', 'three']
    """
    rng = random.Random(seed)
    heap: list[tuple[float, int, str, int]] = []  # (-priority, position, text, bytes)
    total = 0
    threshold = 1.0
    for position, text in enumerate(_chunks(texts)):
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


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    """Texts, long ones in chunks that end before a space or a line end where there is one."""
    for text in texts:
        start = 0
        while len(text) - start > CHUNK:
            last = start + CHUNK
            end = max(text.rfind(" ", start + 1, last), text.rfind("\n", start + 1, last))
            end = end if end > start else last
            yield text[start:end]
            start = end
        if start < len(text):
            yield text[start:] if start else text


def read_blocks(paths: Iterable[str | Path]) -> Iterator[str]:
    """Text files in blocks of whole lines. Raises DataError as `open_text` does."""
    for path in paths:
        with open_text(path) as file:
            while block := file.read(BLOCK):
                yield block + file.readline()
