"""Characters that represent bytes, spaces and word continuations in vocabularies."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable

SPACE = "\u2581"  # sentencepiece's symbol for a space
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
WORDPIECE_PREFIX = "##"

MASK_SPELLINGS = ("[MASK]", "<mask>")
"""Spellings of the mask token in user input, accepted for all tokenizers. Case is ignored."""
MASK_PATTERN = re.compile("|".join(map(re.escape, MASK_SPELLINGS)), re.IGNORECASE)

# `tokenizers` reads longer decimals inexactly, so that a score would change with every saving.
SCORE_DIGITS = 8

UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
"""Matches one Chinese or Japanese character, which counts as one word."""

WORD = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\S)+")
"""Matches one word: characters between spaces, or a single Chinese or Japanese character."""

LETTERS = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\w)+")
"""Matches letters and digits, or a single Chinese or Japanese character. Skips punctuation."""

_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
# Prefixes of the Unicode names of characters from scripts that are written without spaces.
_UNSPACED_NAMES = ("CJK", "FULLWIDTH", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR")


_ASCII = "".join(map(chr, range(0x21, 0x7F)))
_CHINESE_DIGITS = "\u3007\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d"


def list_base_characters(characters: Iterable[str]) -> set[str]:
    """Return the characters that an alphabet always contains, given the characters of a text.

    They are printable ASCII, and the digits of all scripts that occur in `characters`.

    >>> sorted(list_base_characters("\u0e01") - list_base_characters("a"))[::9]
    ['\u0e50', '\u0e59']
    """
    # The Unicode name of a character begins with its script: THAI CHARACTER KO KAI.
    scripts = {unicodedata.name(character, "").partition(" ")[0] for character in characters}
    digits = {digit for digit, names in _list_digits().items() if not names.isdisjoint(scripts)}
    return {*_ASCII, *digits, *(_CHINESE_DIGITS if "CJK" in scripts else "")}


@functools.cache
def _list_digits() -> dict[str, set[str]]:
    """Return a dictionary from each non-ASCII decimal digit to the names of its script.

    These are the words before DIGIT in its Unicode name: THAI DIGIT ONE gives {"THAI"}.
    """
    digits = filter(str.isdecimal, map(chr, range(0x80, sys.maxunicode + 1)))
    names = {digit: unicodedata.name(digit).partition(" DIGIT ")[0] for digit in digits}
    return {digit: set(name.replace("-", " ").split()) for digit, name in names.items()}


def _build_byte_symbols() -> dict[int, str]:
    """Return a dictionary from bytes to the printable characters of GPT-2 (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in symbols)
    symbols.update({byte: chr(256 + rank) for rank, byte in enumerate(others)})
    return symbols


BYTE_TO_SYMBOL = _build_byte_symbols()
SYMBOL_TO_BYTE = {symbol: byte for byte, symbol in BYTE_TO_SYMBOL.items()}


def bytes_to_symbols(data: bytes) -> str:
    """Convert bytes to the characters that represent them in a byte-level vocabulary.

    >>> bytes_to_symbols(b" the")
    '\u0120the'
    """
    return "".join(BYTE_TO_SYMBOL[byte] for byte in data)


def symbols_to_bytes(symbols: str) -> bytes | None:
    """Convert a token of a byte-level vocabulary to bytes.

    Returns None if a character of the token does not represent a byte.
    """
    if any(symbol not in SYMBOL_TO_BYTE for symbol in symbols):
        return None
    return bytes(SYMBOL_TO_BYTE[symbol] for symbol in symbols)


def make_readable(data: bytes) -> str:
    r"""Return the bytes of a token as text for display.

    A space becomes U+2581, and unprintable characters become escapes.

    >>> make_readable(b" caf\xc3\xa9\n"), make_readable(b"\xe5\x8c")
    ('\u2581caf\xe9\\n', '\\xe5\\x8c')
    """
    text = data.decode("utf-8", errors="backslashreplace").replace(" ", SPACE)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script that is written without spaces."""
    if character.isascii():
        return False
    name = unicodedata.name(character, "")
    return name.startswith(_UNSPACED_NAMES) or "\u3000" <= character <= "\u303f"


def is_cjk(character: str) -> bool:
    """Return whether BERT treats a character as a separate CJK word (Devlin et al. 2018)."""
    return _CJK.match(character) is not None


def is_single_word(character: str) -> bool:
    """Return whether BERT's pre-tokenizer treats a character as a separate word.

    These are CJK characters, punctuation and ASCII symbols.
    """
    symbol = character.isascii() and character.isprintable() and not character.isalnum()
    return symbol or unicodedata.category(character).startswith("P") or is_cjk(character)


def continues_word(data: bytes) -> bool:
    """Return whether a token, given as bytes, continues the word before it.

    A token continues a word if it begins with a letter, a digit, a combining mark or a UTF-8
    continuation byte. It does not if it begins with a space, punctuation, a symbol or a CJK
    character (which is a word by itself).
    """
    if not data:
        return False
    if 0x80 <= data[0] < 0xC0:
        return True
    character = data[:4].decode("utf-8", errors="ignore")[:1]
    if not character:
        return False
    return unicodedata.category(character)[0] in "LNM" and not is_cjk(character)
