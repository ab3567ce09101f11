"""Ids to text while they come: never half a character, never a space that was not meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trivium.text import Tokenizer

_UNFINISHED = "\ufffd"  # What decoding gives for bytes that are no whole character yet.
_CONTEXT = 16


class TextStream:
    """Gives the text that each new id adds; the pieces joined are the text of all of them.

    A token's text depends on the tokens before it (spaces between words, bytes of one character),
    so that a window is decoded again each time and only what is new and final is given.

    Args:
        tokenizer: what made the ids.
        prompt: ids before the first new one; they decide how it is joined.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = self._shorten(list(prompt))
        self._given = tokenizer.decode(self._window)

    def push(self, index: int) -> str:
        """Add one id; what can be shown because of it, often the text of the id itself."""
        self._window.append(index)
        text = self._tokenizer.decode(self._window)
        stable = text.rstrip(_UNFINISHED)
        if not stable.startswith(self._given):
            # Either bytes that wait for more, or a prompt that ended in half a character.
            whole = self._given.rstrip(_UNFINISHED)
            if not stable.startswith(whole) or len(stable) == len(whole):
                return ""
            self._given = whole
        new = stable[len(self._given) :]
        self._given = stable
        if stable == text and len(self._window) >= 2 * _CONTEXT:
            self._window = self._shorten(self._window)
            self._given = self._tokenizer.decode(self._window)
        return new

    def finish(self) -> str:
        """What was held back, at the end of the text."""
        text, given = self._tokenizer.decode(self._window), self._given
        while not text.startswith(given):
            given = given[:-1]
        return text[len(given) :]

    def _shorten(self, window: list[int]) -> list[int]:
        """The last ids, from one that begins a character."""
        for start in range(len(window) - _CONTEXT, 0, -1):
            text = self._tokenizer.decode(window[start:])
            if text and not text.startswith(_UNFINISHED):
                return window[start:]
        return window


def added_texts(tokenizer: Tokenizer, pairs: Sequence[tuple[int | None, int]]) -> list[str]:
    """What an id adds to the text of the id before it, for many pairs; None: nothing is before.

    An id alone has lost the space that many tokenizers put before a word.
    """
    before = [[] if first is None else [first] for first, _ in pairs]
    batch = [*before, *([*ids, pair[1]] for ids, pair in zip(before, pairs))]
    texts = tokenizer.decode_batch(batch, skip_special_tokens=False)
    given, whole = texts[: len(pairs)], texts[len(pairs) :]
    return [
        text.removeprefix(start)
        if text.startswith(start)
        else tokenizer.decode([index], skip_special_tokens=False)
        for start, text, (_, index) in zip(given, whole, pairs)
    ]
