"""Cutting long texts into chunks whose token ids, joined, are the ids of the whole text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

_CONTEXT = 1024  # characters that are encoded on each side of a border
_SHIFTS = (0, 1, 2, 5)
_SPACES, _OTHERS = 16, 32  # borders that are tried near a place: at spaces, and anywhere

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class Chunk(NamedTuple):
    """A chunk of a text.

    Its ids are the ids of `before + text` that come after the ids of `before`, which is the end of
    the previous chunk. In the first chunk of a text, `before` is empty.
    """

    before: str
    text: str
    is_last: bool


def cut_texts(parts: Iterable[tuple[str, bool]], encode: Encode, limit: int) -> Iterator[Chunk]:
    """Cut texts into chunks of about `limit` characters.

    A text is cut only at a border, a place where the cut does not change the ids (`_is_border`). If
    there is no border near the limit, the chunk becomes longer.

    Args:
        parts: the texts in parts; each part comes with whether it is the last one of its text.
        encode: returns the ids of texts, without special tokens.
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
    """Return the last border at or before `target`, at a space if possible; None without one."""
    near = range(target, max(target - 4 * _CONTEXT, _CONTEXT + max(_SHIFTS)), -1)
    spaces = [i for i in near if text[i].isspace() and not text[i - 1].isspace()]
    candidates = [*spaces[:_SPACES], *near[:_OTHERS]]
    return next((index for index in candidates if _is_border(text, index, encode)), None)


def _is_border(text: str, index: int, encode: Encode) -> bool:
    """Return whether the ids of the texts on both sides of an index are those of the whole text.

    This holds if the ids of the text on each side do not change when the other side is added. The
    texts are compared with several starting points, because in a run of digits, or of one letter,
    the tokens depend on where the run begins.
    """
    right = text[index : index + _CONTEXT]
    after = None
    for shift in _SHIFTS:
        left = text[index - _CONTEXT + shift : index]
        # The right side is shortened, too: tokens of one letter may depend on where the run ends.
        ids, whole, shorter = encode([left, left + right, left + right[: _CONTEXT - shift]])
        after = whole[len(ids) :] if after is None else after
        if whole != [*ids, *after] or shorter[: len(ids)] != ids:
            return False
    return True
