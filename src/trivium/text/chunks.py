"""Splits long texts into chunks that can be tokenized separately without changing the ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

_CONTEXT = 1024  # characters that are encoded on each side of a boundary
_SHIFTS = (0, 1, 2, 5)
_MAX_SPACES, _MAX_OTHERS = 16, 32  # numbers of candidate boundaries near a position

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class Chunk(NamedTuple):
    """A chunk of a text.

    `before` is the end of the previous chunk, which serves as context; it is empty for the first
    chunk of a text. To encode the chunk, encode `before + text`, and remove the ids of `before`.
    `is_last` is True for the last chunk of a text.
    """

    before: str
    text: str
    is_last: bool


def split_texts(parts: Iterable[tuple[str, bool]], encode: Encode, limit: int) -> Iterator[Chunk]:
    """Split texts into chunks of about `limit` characters. Yields the chunks.

    A text is split only at positions where splitting does not change the token ids. If there is no
    such position near the limit, the chunk becomes longer.

    Args:
        parts: the texts as pairs (part, is_last); `is_last` is True for the last part of each text.
        encode: a function that returns the token ids of each text, without special tokens.
        limit: the number of characters per chunk.
    """
    before, text, target = "", "", limit
    for part, is_last in parts:
        text += part
        while target + _CONTEXT < len(text):
            boundary = _find_boundary(text, target, encode)
            if boundary is None:
                target += limit
                continue
            yield Chunk(before, text[:boundary], is_last=False)
            before, text, target = text[boundary - _CONTEXT : boundary], text[boundary:], limit
        if is_last:
            yield Chunk(before, text, is_last=True)
            before, text, target = "", "", limit


def _find_boundary(text: str, target: int, encode: Encode) -> int | None:
    """Return a position near `target` where splitting does not change the token ids.

    Only positions up to `target` are tried: first before spaces, then at any character, from the
    last to the first. Returns None if there is no such position.
    """
    near = range(target, max(target - 4 * _CONTEXT, _CONTEXT + max(_SHIFTS)), -1)
    spaces = [i for i in near if text[i].isspace() and not text[i - 1].isspace()]
    candidates = [*spaces[:_MAX_SPACES], *near[:_MAX_OTHERS]]
    return next((index for index in candidates if _is_boundary(text, index, encode)), None)


def _is_boundary(text: str, index: int, encode: Encode) -> bool:
    """Return whether splitting a text at `index` does not change its token ids.

    The ids on each side of `index` must stay the same when the text on the other side is added.
    This is checked with several starting points, because the tokens of a run of digits, or of a
    repeated letter, depend on where the run begins.
    """
    right = text[index : index + _CONTEXT]
    after = None
    for shift in _SHIFTS:
        left = text[index - _CONTEXT + shift : index]
        # The right side is shortened, too: tokens of a repeated letter may depend on its end.
        ids, whole, shorter = encode([left, left + right, left + right[: _CONTEXT - shift]])
        after = whole[len(ids) :] if after is None else after
        if whole != [*ids, *after] or shorter[: len(ids)] != ids:
            return False
    return True
