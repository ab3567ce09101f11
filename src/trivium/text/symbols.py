"""How vocabularies write bytes, spaces and the inside of a word."""

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
"""What a user may write for a mask, in any case, whatever the tokenizer's own mask token is."""
MASK_PATTERN = re.compile("|".join(map(re.escape, MASK_SPELLINGS)), re.IGNORECASE)

# The library reads longer decimals inexactly: a score would change each time it is saved.
SCORE_DIGITS = 8

UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
"""A Chinese or Japanese character: a word by itself where words are counted."""

WORD = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\S)+")
"""What has spaces around it; of Chinese and Japanese a character."""

LETTERS = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\w)+")
"""A word without its marks: letters and digits; of Chinese and Japanese a character."""

_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
# How the Unicode names of characters begin that are written without spaces.
_UNSPACED_NAMES = ("CJK", "FULLWIDTH", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR")


_ASCII = "".join(map(chr, range(0x21, 0x7F)))
_CHINESE_DIGITS = "\u3007\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d"


def base_characters(characters: Iterable[str]) -> set[str]:
    """Return printable ASCII and the digits of every script that some characters belong to.

    >>> sorted(base_characters("\u0e01") - base_characters("a"))[::9]
    ['\u0e50', '\u0e59']
    """
    # The Unicode name of a character begins with its script: THAI CHARACTER KO KAI.
    scripts = {unicodedata.name(character, "").partition(" ")[0] for character in characters}
    digits = {digit for digit, names in _decimal_digits().items() if not names.isdisjoint(scripts)}
    return {*_ASCII, *digits, *(_CHINESE_DIGITS if "CJK" in scripts else "")}


@functools.cache
def _decimal_digits() -> dict[str, set[str]]:
    """Return every decimal digit beyond ASCII with the words of its name before DIGIT."""
    digits = filter(str.isdecimal, map(chr, range(0x80, sys.maxunicode + 1)))
    names = {digit: unicodedata.name(digit).partition(" DIGIT ")[0] for digit in digits}
    return {digit: set(name.replace("-", " ").split()) for digit, name in names.items()}


def _byte_symbols() -> dict[int, str]:
    """Byte -> printable character of GPT-2's byte-level BPE (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in symbols)
    symbols.update({byte: chr(256 + rank) for rank, byte in enumerate(others)})
    return symbols


BYTE_TO_SYMBOL = _byte_symbols()
SYMBOL_TO_BYTE = {symbol: byte for byte, symbol in BYTE_TO_SYMBOL.items()}


def bytes_to_symbols(data: bytes) -> str:
    """Bytes as the characters of a byte-level vocabulary.

    >>> bytes_to_symbols(b" the")
    '\u0120the'
    """
    return "".join(BYTE_TO_SYMBOL[byte] for byte in data)


def symbols_to_bytes(symbols: str) -> bytes | None:
    """The bytes behind byte-level symbols, None where a character is not one of them."""
    if any(symbol not in SYMBOL_TO_BYTE for symbol in symbols):
        return None
    return bytes(SYMBOL_TO_BYTE[symbol] for symbol in symbols)


def readable(data: bytes) -> str:
    r"""Bytes of a token for display: U+2581 for a space, escapes for what is not printable.

    >>> readable(b" caf\xc3\xa9\n"), readable(b"\xe5\x8c")
    ('\u2581caf\xe9\\n', '\\xe5\\x8c')
    """
    text = data.decode("utf-8", errors="backslashreplace").replace(" ", SPACE)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script that is written without spaces."""
    if character.isascii():
        return False
    name = unicodedata.name(character, "")
    return name.startswith(_UNSPACED_NAMES) or "\u3000" <= character <= "\u303f"


def is_cjk(character: str) -> bool:
    """Whether BERT's normalizer makes a word of this character alone (Devlin et al. 2018)."""
    return _CJK.match(character) is not None


def is_single_word(character: str) -> bool:
    """Whether BERT's splits make a word of this character: CJK, punctuation, ASCII symbols."""
    symbol = character.isascii() and character.isprintable() and not character.isalnum()
    return symbol or unicodedata.category(character).startswith("P") or is_cjk(character)


def continues_text(data: bytes) -> bool:
    """Whether a token of these bytes, with no space before it, continues a word.

    True for letters, digits, marks and the inside of a character; False for spaces, punctuation,
    symbols and CJK characters, each of which is a word of its own.
    """
    if not data:
        return False
    if 0x80 <= data[0] < 0xC0:
        return True
    character = data[:4].decode("utf-8", errors="ignore")[:1]
    if not character:
        return False
    return unicodedata.category(character)[0] in "LNM" and not is_cjk(character)
