"""Explanations: how a tokenizer turns each word of a text into tokens, step by step.

The implementations behind them are for reading and for small texts; tests compare their tokens
with the libraries'.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tokenizers


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Steps to show: `lines` for people, and the same as plain values in `facts`, for JSON."""

    lines: list[str]
    facts: dict[str, Any]

    @property
    def tokens(self) -> tuple[str, ...]:
        """What a word or text becomes."""
        return self.facts["tokens"]

    def render(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def explain_word(word: str, tokens: tuple[str, ...]) -> Explanation:
    """One word (after normalization and pre-tokenization) that becomes tokens in a single step."""
    return Explanation([f"{word}: {' '.join(tokens)}"], {"word": word, "tokens": tokens})


def explain_text(text: str, words: list[Explanation]) -> Explanation:
    """How each word of a text becomes tokens, and all of these."""
    tokens = tuple(token for word in words for token in word.tokens)
    lines = [line for word in words for line in word.lines]
    facts = {"text": text, "words": [word.facts for word in words], "tokens": tokens}
    return Explanation([*lines, f"tokens: {' '.join(tokens)}"], facts)


def split_words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """The words of `text` after the tokenizer's normalizer and pre-tokenizer."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return [text] if text else []
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
