"""Long texts in chunks whose token ids, one after another, are those of the whole text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

_CONTEXT = 1024  # characters that are encoded on each side of a border
_SHIFTS = (0, 1, 2, 5)
_SPACES, _OTHERS = 16, 32  # borders that are tried at one place: at spaces, and at any character

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class Chunk(NamedTuple):
    """A chunk of a text. Its ids are those of `before + text` without those of `before`.

    `before` is the end of the chunk before, and empty for the first chunk of a text.
    """

    before: str
    text: str
    is_last: bool


def cut_texts(parts: Iterable[tuple[str, bool]], encode: Encode, limit: int) -> Iterator[Chunk]:
    """Cut texts, given in parts, into chunks of about `limit` characters.

    A part comes with whether it is the last of its text. `encode` gives the ids of texts without
    special tokens. A text is cut only where its ids do not depend on the cut (`_is_border`); where
    there is no such place, the chunk becomes longer.
    """
    before = text = ""
    target = limit
    for part, is_last in parts:
        text += part
        while target + _CONTEXT < len(text):
            border = _find_border(text, target, encode)
            if border is None:
                target += limit
                continue
            yield Chunk(before, text[:border], is_last=False)
            before, text = text[border - _CONTEXT : border], text[border:]
            target = limit
        if is_last:
            yield Chunk(before, text, is_last=True)
            before = text = ""
            target = limit


def _find_border(text: str, target: int, encode: Encode) -> int | None:
    """The last border at or before `target`, at a space if there is one; None: none was found."""
    near = range(target, max(target - 4 * _CONTEXT, _CONTEXT + max(_SHIFTS)), -1)
    spaces = [i for i in near if text[i].isspace() and not text[i - 1].isspace()]
    candidates = [*spaces[:_SPACES], *near[:_OTHERS]]
    return next((index for index in candidates if _is_border(text, index, encode)), None)


def _is_border(text: str, index: int, encode: Encode) -> bool:
    """Whether the ids of both sides of an index are those of the whole.

    They are where the ids of some text before the index, and after it, do not change when the
    other side is added, wherever that text begins: in a run of digits, or of one letter, tokens
    are counted from the beginning of the run.
    """
    right = text[index : index + _CONTEXT]
    after = None
    for shift in _SHIFTS:
        left = text[index - _CONTEXT + shift : index]
        # The right side is shortened, too: tokens of one letter may be counted from its end.
        ids, whole, shorter = encode([left, left + right, left + right[: _CONTEXT - shift]])
        after = whole[len(ids) :] if after is None else after
        if whole != [*ids, *after] or shorter[: len(ids)] != ids:
            return False
    return True
