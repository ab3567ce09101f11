"""The bytes of a text: what a byte-level tokenizer sees."""

from __future__ import annotations

import dataclasses
import unicodedata

from trivium.text.symbols import bytes_to_symbols


@dataclasses.dataclass(frozen=True, slots=True)
class CharacterBytes:
    """One character: its code point, its UTF-8 bytes and the byte-level symbols for them."""

    character: str
    code_point: str
    name: str
    utf8: tuple[int, ...]
    symbols: str


@dataclasses.dataclass(frozen=True, slots=True)
class TextBytes:
    """The characters of a text as bytes."""

    text: str
    characters: tuple[CharacterBytes, ...]

    @property
    def symbols(self) -> str:
        """The whole text in byte-level symbols, one a byte."""
        return "".join(character.symbols for character in self.characters)

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {**dataclasses.asdict(self), "symbols": self.symbols}

    def render(self) -> str:
        """One line a character."""
        lines = [
            f"{_shown(c.character)}  {c.code_point:<9} "
            f"{' '.join(f'{byte:02X}' for byte in c.utf8):<12} {c.symbols:<5} {c.name}".rstrip()
            for c in self.characters
        ]
        count = len(self.symbols)
        lines.append(f"{len(self.characters)} characters, {count} bytes: {self.symbols}")
        return "\n".join(lines)


def explain_bytes(text: str) -> TextBytes:
    """The code point, UTF-8 bytes and byte-level symbols (GPT-2's table) of each character."""
    return TextBytes(text, tuple(_character(character) for character in text))


def _character(character: str) -> CharacterBytes:
    data = character.encode("utf-8", errors="replace")
    return CharacterBytes(
        character=character,
        code_point=f"U+{ord(character):04X}",
        name=unicodedata.name(character, ""),
        utf8=tuple(data),
        symbols=bytes_to_symbols(data),
    )


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
