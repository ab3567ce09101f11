"""Chunk tags: telling them from other tags, and mending sequences that begin a chunk with I-."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CHUNK_TAG = re.compile(r"O|[BIESLU](-.+)?")
# What a tag inside or at the end of a chunk becomes where no chunk is open.
_OPENING = {"I": "B", "E": "S", "L": "U"}


def are_chunk_tags(tags: Iterable[str]) -> bool:
    """Whether tags mark chunks: all are O or B-, I-, E-, S- (L-, U-) and a type, one is B or I.

    >>> are_chunk_tags(["O", "B-PER", "I-PER"]), are_chunk_tags(["NOUN", "VERB"])
    (True, False)
    """
    different = set(tags)
    return all(_CHUNK_TAG.fullmatch(tag) for tag in different) and any(
        tag[0] in "BISU" for tag in different
    )


def repair_iob(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags in which every chunk begins: I- after O or after another type becomes B-.

    This turns IOB1, where B- stands only between neighbours of one type, into IOB2. In schemes
    that mark ends, E- where no chunk is open becomes S-, L- becomes U-.

    >>> repair_iob(["I-PER", "I-PER", "O", "B-LOC", "I-PER"])
    ('B-PER', 'I-PER', 'O', 'B-LOC', 'B-PER')
    """
    mended = []
    open_type: str | None = None
    for tag in tags:
        mark, dash, chunk_type = tag.partition("-")
        if mark in _OPENING and open_type != chunk_type:
            mark = _OPENING[mark]
        mended.append(mark + dash + chunk_type)
        open_type = chunk_type if mark in ("B", "I") else None
    return tuple(mended)
