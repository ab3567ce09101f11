"""Explanation of text as bytes: UTF-8, which byte-level BPE uses, and UTF-16."""

from __future__ import annotations

from trivium.explain.page import Page, Table, get_text
from trivium.explain.tokens import choose_texts
from trivium.text.symbols import bytes_to_symbols

_COLUMNS = [get_text("bytes.character"), get_text("bytes.code_point"), "UTF-8", "UTF-16"]
_SYMBOLS = get_text("bytes.byte_level_vocabulary")
_WHY = get_text("bytes.byte_level_note")
_BOOK = get_text("bytes.textbook_note")


def explain(text: str = "今天") -> Page:
    """Show the code point and the bytes of each character.

    Args:
        text: Any text.
    """
    rows = [
        [c, f"U+{ord(c):04X}", c.encode(), c.encode("utf-16-be"), bytes_to_symbols(c.encode())]
        for c in choose_texts([text], [])[0]
    ]
    shown = [[one.hex(" ") if isinstance(one, bytes) else one for one in row] for row in rows]
    utf8, utf16 = (b"".join(row[column] for row in rows) for column in (2, 3))
    caption = get_text("bytes.lengths", characters=len(text), utf8=len(utf8), utf16=len(utf16))
    notes = [_WHY, _BOOK] if text == "今天" else [_WHY]
    return Page(
        get_text("bytes.text_as_bytes"),
        [Table([*_COLUMNS, _SYMBOLS], shown, caption), *notes],
        {"utf8": utf8.hex(" "), "utf16": utf16.hex(" "), "symbols": bytes_to_symbols(utf8)},
    )
