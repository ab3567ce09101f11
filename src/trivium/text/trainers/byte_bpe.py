"""Byte-level BPE (Radford et al. 2019, GPT-2): no text has unknown tokens.

A text that holds no name of a special token comes back exactly.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from trivium.text.explanation import Explanation
from trivium.text.roles import END_OF_TEXT
from trivium.text.symbols import bytes_to_symbols, readable, symbols_to_bytes
from trivium.text.tokenizer import Tokenizer
from trivium.text.trainers import SpecialTokens, TokenizerConfig
from trivium.text.trainers.bpe import explain_by_merges


class ByteBPE(TokenizerConfig):
    """Merges of bytes, which need no unknown token."""

    kind: Literal["byte-bpe"] = "byte-bpe"
    component_types: ClassVar[tuple[str, ...]] = ("BPE", "ByteLevel")
    special_tokens: SpecialTokens = (END_OF_TEXT,)
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to be merged")

    def build(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Learn merges."""
        self.check_size(len(self.special_tokens) + 256)
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.run_trainer(
            backend,
            trainers.BpeTrainer,
            texts,
            min_frequency=self.min_frequency,
            initial_alphabet=alphabet,
        )
        return backend

    @classmethod
    def explain_words(cls, tokenizer: Tokenizer, words: Sequence[str]) -> list[Explanation]:
        """Apply merges one by one, bytes shown as text."""
        return explain_by_merges(tokenizer, words, _readable_symbols)


def _readable_symbols(symbols: str) -> str:
    data = symbols_to_bytes(symbols)
    return symbols if data is None else readable(data)


def explain_bytes(text: str) -> Explanation:
    """The code point, UTF-8 bytes and byte-level symbols (GPT-2's table) of each character."""
    characters, lines = [], []
    for character in text:
        utf8, code_point = character.encode(), f"U+{ord(character):04X}"
        name, symbols = unicodedata.name(character, ""), bytes_to_symbols(utf8)
        characters.append(
            {
                "character": character,
                "code_point": code_point,
                "name": name,
                "utf8": tuple(utf8),
                "symbols": symbols,
            }
        )
        shown = f"{readable(utf8)}  {code_point:<9} {utf8.hex(' ').upper():<12} {symbols:<5} {name}"
        lines.append(shown.rstrip())
    symbols = bytes_to_symbols(text.encode())
    lines.append(f"{len(text)} characters, {len(symbols)} bytes: {symbols}")
    return Explanation(lines, {"characters": characters, "symbols": symbols})
