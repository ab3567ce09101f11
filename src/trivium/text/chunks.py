"""Splits long texts into chunks so that the concatenated ids are those of the whole text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

_CONTEXT = 1024  # characters that are encoded on each side of a border
_SHIFTS = (0, 1, 2, 5)
_MAX_SPACES, _MAX_OTHERS = 16, 32  # numbers of candidate borders near a position

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class Chunk(NamedTuple):
    """A chunk of a text.

    The ids of the chunk are those of `before + text` without the leading ids of `before`, the end
    of the previous chunk. In the first chunk of a text, `before` is empty.
    """

    before: str
    text: str
    is_last: bool


def split_texts(parts: Iterable[tuple[str, bool]], encode: Encode, limit: int) -> Iterator[Chunk]:
    """Split texts into chunks of about `limit` characters.

    A text is split only at a border: a position where splitting does not change the ids
    (`_is_border`). If there is no border near the limit, the chunk becomes longer.

    Args:
        parts: the texts as pairs (part, is_last); `is_last` marks the last part of a text.
        encode: a function that returns the ids of texts, without special tokens.
        limit: the number of characters of a chunk.
    """
    before, text, target = "", "", limit
    for part, is_last in parts:
        text += part
        while target + _CONTEXT < len(text):
            border = _find_border(text, target, encode)
            if border is None:
                target += limit
                continue
            yield Chunk(before, text[:border], is_last=False)
            before, text, target = text[border - _CONTEXT : border], text[border:], limit
        if is_last:
            yield Chunk(before, text, is_last=True)
            before, text, target = "", "", limit


def _find_border(text: str, target: int, encode: Encode) -> int | None:
    """Return the last border at or before `target`, preferably at a space, or None."""
    near = range(target, max(target - 4 * _CONTEXT, _CONTEXT + max(_SHIFTS)), -1)
    spaces = [i for i in near if text[i].isspace() and not text[i - 1].isspace()]
    candidates = [*spaces[:_MAX_SPACES], *near[:_MAX_OTHERS]]
    return next((index for index in candidates if _is_border(text, index, encode)), None)


def _is_border(text: str, index: int, encode: Encode) -> bool:
    """Return whether splitting a text at an index does not change its ids.

    This holds if the ids on each side do not change when the other side is added. The comparison is
    repeated with several starting points, because the tokens of a run of digits or of a repeated
    letter depend on where the run begins.
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
