"""Byte-level BPE (Radford et al. 2019, GPT-2): no text has unknown tokens.

A text that holds no name of a special token comes back exactly.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from trivium.text.bpe import merge_explainer
from trivium.text.explanation import Explanation, WordExplanation
from trivium.text.roles import END_OF_TEXT
from trivium.text.symbols import bytes_to_symbols, readable, symbols_to_bytes
from trivium.text.tokenizer import SpecialTokens, Tokenizer, TokenizerConfig
from trivium.text.trainers import run_trainer


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
        run_trainer(
            self,
            backend,
            trainers.BpeTrainer,
            texts,
            min_frequency=self.min_frequency,
            initial_alphabet=alphabet,
        )
        return backend

    @classmethod
    def word_explainer(cls, tokenizer: Tokenizer) -> Callable[[str], WordExplanation]:
        """Applies merges one by one, bytes shown as text."""
        return merge_explainer(tokenizer, _readable_symbols)


def _readable_symbols(symbols: str) -> str:
    data = symbols_to_bytes(symbols)
    return symbols if data is None else readable(data)


@dataclasses.dataclass(frozen=True, slots=True)
class CharacterBytes:
    """One character: its code point, its name, its UTF-8 bytes and the symbols of those bytes."""

    character: str
    code_point: str
    name: str
    utf8: tuple[int, ...]
    symbols: str


@dataclasses.dataclass(frozen=True)
class TextBytes(Explanation):
    """The characters of a text as bytes; `symbols` is the whole text in byte-level symbols."""

    characters: tuple[CharacterBytes, ...]
    symbols: str

    def render(self) -> str:
        """One line per character."""
        lines = [
            f"{readable(c.character.encode())}  {c.code_point:<9} "
            f"{bytes(c.utf8).hex(' ').upper():<12} {c.symbols:<5} {c.name}".rstrip()
            for c in self.characters
        ]
        size = f"{len(self.characters)} characters, {len(self.symbols)} bytes"
        return "\n".join([*lines, f"{size}: {self.symbols}"])


def explain_bytes(text: str) -> TextBytes:
    """The code point, UTF-8 bytes and byte-level symbols (GPT-2's table) of each character."""
    characters = tuple(
        CharacterBytes(
            character,
            f"U+{ord(character):04X}",
            unicodedata.name(character, ""),
            tuple(character.encode()),
            bytes_to_symbols(character.encode()),
        )
        for character in text
    )
    return TextBytes(characters, bytes_to_symbols(text.encode()))
