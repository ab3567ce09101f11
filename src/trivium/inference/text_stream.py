"""Streaming detokenization: complete characters, spaces and stop strings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tokenizers.decoders import DecodeStream

from trivium.text import Tokenizer

_CONTEXT_TOKENS = 16  # of the context


class TextStream:
    """Streaming detokenizer: converts tokens, one at a time, to pieces of text.

    The joined pieces are the text of all tokens. A piece consists of complete characters; the bytes
    of an incomplete character are held back.

    Args:
        tokenizer: the tokenizer of the ids.
        context_ids: the tokens before the first token; they decide whether the text begins with a
            space.
        shown_ids: the special tokens whose names are part of the text. The others are left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context_ids: Sequence[int] = (),
        *,
        shown_ids: Collection[int] = (),
    ) -> None:
        self._tokenizer, self._skips_all = tokenizer, not shown_ids
        self._hidden_ids = {*tokenizer.special_ids} - {*shown_ids} if shown_ids else set[int]()
        self._stream = self._new_stream()
        self._held, self._known = list[int](), ""
        for token_id in context_ids[-_CONTEXT_TOKENS:]:
            self.push(token_id)
        self._known = self.finish().rstrip("\ufffd")  # the context may end within a character

    def push(self, token_id: int) -> str:
        """Add one token. Returns the characters that the token completes."""
        if token_id in self._hidden_ids:
            return ""
        self._held.append(token_id)
        try:
            piece = self._stream.step(self._tokenizer.backend, token_id)
        except Exception:  # a stray byte, which makes the character before it invalid
            self._stream = self._new_stream()
            piece = self._decode(self._held)
        if piece is None:
            return ""
        known, self._known, self._held = self._known, "", []
        return piece.removeprefix(known)

    def finish(self) -> str:
        """End the stream. Returns the text held back so far: that of an incomplete character."""
        return self._decode(self._held).removeprefix(self._known)

    def _new_stream(self) -> DecodeStream:
        """Return a decoder of `tokenizers` without any tokens."""
        return DecodeStream(skip_special_tokens=self._skips_all)

    def _decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens that are not hidden."""
        return self._tokenizer.decode(ids, skip_special_tokens=self._skips_all)


class StopStrings:
    """Filter that ends a stream of text before the first occurrence of a stop string.

    Args:
        stop: the strings that end the text; no string may be empty.

    Attributes:
        matched: whether a stop string occurred.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop, self._held, self.matched = tuple(stop), "", False

    def push(self, piece: str, *, last: bool = False) -> str:
        """Add a piece of text. Returns the new text that is certain to precede any stop string.

        The possible start of a stop string is held back, unless this is the `last` piece.
        """
        text = self._held + piece
        matches = [start for stop in self._stop if (start := text.find(stop)) >= 0]
        if matches:
            self.matched, self._held = True, ""
            return text[: min(matches)]
        held = 0 if last else self._stop_prefix_length(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _stop_prefix_length(self, text: str) -> int:
        """Return the number of characters at the end of a text that may begin a stop string."""
        sizes = (
            size
            for stop in self._stop
            for size in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:size])
        )
        return max(sizes, default=0)


def token_texts(tokenizer: Tokenizer, pairs: Sequence[tuple[int | None, int]]) -> list[str]:
    """Return the text that each token adds to its previous token, for pairs (previous, token).

    The previous token (or None) is needed because a token decoded alone loses the space that many
    tokenizers put before a word. If a token's bytes are not complete characters, the bytes are
    shown, such as "\\xe5\\xa4".
    """
    before = [[] if previous is None else [previous] for previous, _ in pairs]
    batch = [*before, *([*ids, pair[1]] for ids, pair in zip(before, pairs))]
    texts = tokenizer.decode_batch(batch, skip_special_tokens=False)
    added = (
        text.removeprefix(start)
        if text.startswith(start)
        else tokenizer.decode([token_id], skip_special_tokens=False)
        for start, text, (_, token_id) in zip(texts, texts[len(pairs) :], pairs)
    )
    return [
        text if is_utf8(tokenizer.token_bytes[token_id]) else tokenizer.readable_tokens[token_id]
        for text, (_, token_id) in zip(added, pairs)
    ]


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are valid UTF-8, without incomplete characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
