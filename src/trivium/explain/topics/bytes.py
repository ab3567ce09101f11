"""The bytes of a text in UTF-8, which byte-level BPE takes, and in UTF-16."""

from __future__ import annotations

import unicodedata

from trivium.errors import TokenizerError
from trivium.explain.page import Bilingual, Formula, Page, Table
from trivium.text.symbols import bytes_to_symbols

SUMMARY = Bilingual("a text as bytes, in UTF-8 and UTF-16", "文本的字节：UTF-8 与 UTF-16")

_WHY = Bilingual(
    "Byte-level BPE takes UTF-8: letters of ASCII stay one byte each, there is no order of bytes "
    "to agree on, and no byte of one character looks like another character. 256 symbols write "
    "every text, so that nothing is unknown. GPT-2 writes each byte as a printable symbol:",
    "字节级 BPE 采用 UTF-8：ASCII 字符仍各占一个字节，没有字节序问题，"
    "一个字符的字节也不会与另一个字符混淆。256 个符号足以写出任何文本，因此没有未知词元。"
    "GPT-2 把每个字节写成一个可打印的符号：",
)
_BOOK = Bilingual(
    "A textbook prints 62 11 4e ca for this text. These are the bytes of 我今 in UTF-16; 今天 is "
    "4e ca 59 29 there, and e4 bb 8a e5 a4 a9 in UTF-8.",
    "有教材把“今天”的字节印作 62 11 4e ca，那其实是“我今”的 UTF-16 编码。"
    "“今天”的 UTF-16 编码是 4e ca 59 29，UTF-8 编码是 e4 bb 8a e5 a4 a9。",
)


def explain(text: str = "今天") -> Page:
    """Show code points and bytes of each character.

    Args:
        text: Any text.
    """
    try:
        utf8, utf16 = text.encode(), text.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise TokenizerError(f"This text has no bytes, it is not valid Unicode: {error}.") from None
    characters = [
        {
            "character": character,
            "code_point": f"U+{ord(character):04X}",
            "name": unicodedata.name(character, ""),
            "utf8": character.encode().hex(" "),
            "utf16": character.encode("utf-16-be").hex(" "),
            "symbols": bytes_to_symbols(character.encode()),
        }
        for character in text
    ]
    columns = [
        Bilingual("character", "字符"),
        Bilingual("code point", "码点"),
        Bilingual("name", "名称"),
        "UTF-8",
        "UTF-16",
        Bilingual("symbols", "符号"),
    ]
    rows = [[*one.values()] for one in characters]
    caption = Bilingual(
        f"{len(text)} characters, {len(utf8)} bytes in UTF-8, {len(utf16)} in UTF-16",
        f"{len(text)} 个字符，UTF-8 编码 {len(utf8)} 个字节，UTF-16 编码 {len(utf16)} 个字节",
    )
    symbols = bytes_to_symbols(utf8)
    return Page(
        Bilingual("A text as bytes", "文本的字节"),
        [
            Table(columns, rows, caption),
            _WHY,
            Formula(symbols),
            *([_BOOK] if text == "今天" else []),
        ],
        {
            "characters": characters,
            "utf8": utf8.hex(" "),
            "utf16": utf16.hex(" "),
            "symbols": symbols,
        },
    )
