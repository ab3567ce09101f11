"""The bytes of a text in UTF-8, which byte-level BPE takes, and in UTF-16."""

from __future__ import annotations

from trivium.explain.page import Bilingual, Page, Table
from trivium.explain.tokens import texts_or_default
from trivium.text.symbols import bytes_to_symbols

SUMMARY = Bilingual("a text as bytes, in UTF-8 and UTF-16", "文本的字节：UTF-8 与 UTF-16")

_COLUMNS = [Bilingual("character", "字符"), Bilingual("code point", "码点"), "UTF-8", "UTF-16"]
_SYMBOLS = Bilingual("in a byte-level vocabulary", "字节级词表中的写法")
_WHY = Bilingual(
    "Byte-level BPE takes UTF-8: letters of ASCII stay one byte each, there is no order of bytes "
    "to agree on, and 256 symbols write every text, so that nothing is unknown.",
    "字节级 BPE 采用 UTF-8：ASCII 字符仍各占一个字节，没有字节序问题；"
    "256 个符号足以写出任何文本，因此没有未知词元。",
)
_BOOK = Bilingual(
    "A textbook prints 62 11 4e ca for 今天. These are the bytes of 我今 in UTF-16.",
    "有教材把“今天”的字节印作 62 11 4e ca，那其实是“我今”的 UTF-16 编码。",
)


def explain(text: str = "今天") -> Page:
    """Show code points and bytes of each character.

    Args:
        text: Any text.
    """
    rows = [
        [c, f"U+{ord(c):04X}", c.encode(), c.encode("utf-16-be"), bytes_to_symbols(c.encode())]
        for c in texts_or_default([text], [])[0]
    ]
    shown = [[one.hex(" ") if isinstance(one, bytes) else one for one in row] for row in rows]
    utf8, utf16 = (b"".join(row[column] for row in rows) for column in (2, 3))
    caption = Bilingual(
        f"{len(text)} characters, {len(utf8)} bytes in UTF-8, {len(utf16)} in UTF-16",
        f"{len(text)} 个字符，UTF-8 编码 {len(utf8)} 个字节，UTF-16 编码 {len(utf16)} 个字节",
    )
    notes = [_WHY, _BOOK] if text == "今天" else [_WHY]
    return Page(
        Bilingual("A text as bytes", "文本的字节"),
        [Table([*_COLUMNS, _SYMBOLS], shown, caption), *notes],
        {"utf8": utf8.hex(" "), "utf16": utf16.hex(" "), "symbols": bytes_to_symbols(utf8)},
    )
