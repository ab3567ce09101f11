"""Explanations: how a tokenizer turns each word of a text into tokens, step by step.

The implementations behind them are for reading and for small texts; tests compare their tokens
with the libraries'.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import tokenizers


@dataclasses.dataclass(frozen=True)
class Explanation(ABC):
    """Steps to show: `render` for people, `to_dict` for JSON."""

    @abstractmethod
    def render(self) -> str:
        """The steps as lines of text."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class WordExplanation(Explanation):
    """How one word (after normalization and pre-tokenization) becomes tokens."""

    word: str
    tokens: tuple[str, ...]

    def render(self) -> str:
        """The word and its tokens."""
        return f"{self.word}: {' '.join(self.tokens)}"


@dataclasses.dataclass(frozen=True)
class TextExplanation(Explanation):
    """How each word of a text becomes tokens, and all of these."""

    text: str
    words: tuple[WordExplanation, ...]
    tokens: tuple[str, ...]

    def render(self) -> str:
        """Each word, then all tokens."""
        lines = [word.render() for word in self.words]
        return "\n".join([*lines, f"tokens: {' '.join(self.tokens)}"])


def split_words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """The words of `text` after the tokenizer's normalizer and pre-tokenizer."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return [text] if text else []
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
