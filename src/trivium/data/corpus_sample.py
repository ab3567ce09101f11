"""Random parts of a large corpus, for training a tokenizer without reading the whole corpus."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import os
import random
import re
from collections.abc import Sequence
from typing import BinaryIO

from trivium.data.records import RECORD_SUFFIXES
from trivium.data.sources import Source, file_format
from trivium.files import COMPRESSIONS

MIN_BYTES = 250_000_000
"""A corpus with fewer bytes is always read as a whole."""

_BLOCK = 1 << 20  # bytes of a part
_LONGEST = 1 << 23  # bytes of the longest document
_RESERVE = 1.25  # times more text than asked for, since some parts hold validation documents


def sample_sources(
    sources: Sequence[Source], max_bytes: int, *, separator: str, encoding: str, seed: int = 0
) -> tuple[Source, ...]:
    """Return random parts of the sources, of about 1 MB each and at least `max_bytes` in all.

    Every block of a file has the same probability. A part begins and ends between two documents. If
    the corpus is too small, or if one of the sources can only be read as a whole, all sources are
    returned unchanged. Parts of a file can be read if the file is local, uncompressed UTF-8 text
    with documents of at most 8 MB and a separator between them, or JSON Lines.

    Args:
        sources: the sources of a corpus.
        max_bytes: the size of the sample in bytes.
        separator: what separates the documents of plain text: "blank", "line", "file" or a string.
        encoding: the encoding of the sources.
        seed: the seed of the random numbers.
    """
    total, wanted = sum(source.size for source in sources), round(max_bytes * _RESERVE)
    patterns = [_find_pattern(source, separator, encoding) for source in sources]
    if total < max(MIN_BYTES, 2 * wanted) or None in patterns:
        return tuple(sources)
    blocks = [
        (number, start)
        for number, source in enumerate(sources)
        for start in range(0, source.size, _BLOCK)
    ]
    random.Random(seed).shuffle(blocks)
    ends = itertools.accumulate(min(_BLOCK, sources[n].size - start) for n, start in blocks)
    count = next(number for number, end in enumerate(ends, 1) if end >= wanted)
    parts = []
    for number, start in sorted(blocks[:count]):
        source, pattern = sources[number], patterns[number]
        assert pattern is not None
        with open(source.name, "rb") as file:
            first = _find_document(file, start, pattern)
            last = _find_document(file, start + _BLOCK, pattern)
        if first is None or last is None:
            return tuple(sources)
        if first < last:
            # A part may have no visible text, which is an error only for a source that was named.
            parts.append(dataclasses.replace(source, named=False, extent=(first, last)))
    return tuple(parts)


def _find_pattern(source: Source, separator: str, encoding: str) -> bytes | None:
    """Return the pattern of bytes that ends a document, or None if parts cannot be read."""
    is_local = source.kind == "file" and os.path.isfile(source.name)
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    if not is_local or not is_utf8 or source.name.lower().endswith(COMPRESSIONS):
        return None
    suffix = file_format(source.name)
    if suffix in RECORD_SUFFIXES:
        return rb"\n" if suffix == ".jsonl" else None
    patterns = {"file": None, "blank": rb"\n\s*\n", "line": rb"\n"}
    return patterns.get(separator, re.escape(separator.encode()))


def _find_document(file: BinaryIO, offset: int, pattern: bytes) -> int | None:
    """Return the offset of the first document that begins after `offset`, or the end of the file.

    The first document begins at offset 0. Returns None if a document is longer than `_LONGEST`.
    """
    if offset == 0:
        return 0
    file.seek(offset)
    content = file.read(_LONGEST)
    if found := re.search(pattern, content):
        return offset + found.end()
    return None if len(content) == _LONGEST else max(offset, os.fstat(file.fileno()).st_size)
