"""Pieces of HTML that several tabs show. All of them take text, and escape it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from trivium.text import Tokenizer
from trivium.text.symbols import symbols_to_bytes

COLORS = 8
"""How many colours of tags and tokens there are in the style."""

_VISIBLE = {"\n": "\u21b5", "\t": "\u21e5", " ": "\u2423"}


def percent(share: float) -> str:
    """A probability for people, with more digits where it is small.

    >>> percent(0.4213), percent(0.0421), percent(0.00001), percent(1.0)
    ('42.1%', '4.2%', '<0.01%', '100.0%')
    """
    if 0 < share < 1e-4:
        return "<0.01%"
    return f"{100 * share:.2f}%" if share < 0.01 else f"{100 * share:.1f}%"


def bars(rows: Iterable[tuple[str, float, str]]) -> str:
    """Rows of a name, a bar as long as its share (0 to 1), and the share; a line below each."""
    found = []
    for name, share, below in rows:
        under = f'<div class="tv-below">{escape(below)}</div>' if below else ""
        found.append(
            f'<li><span class="tv-name">{escape(name)}</span>'
            f'<span class="tv-bar"><i style="width:{100 * min(1.0, max(0.0, share)):.2f}%"></i>'
            f'</span><span class="tv-share">{percent(share)}</span>{under}</li>'
        )
    return f'<ol class="tv-bars">{"".join(found)}</ol>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int]) -> str:
    """A table of text; the columns in `numbers` are set right."""

    def line(tag: str, texts: Sequence[str]) -> str:
        kinds = (' class="number"' if place in numbers else "" for place in range(len(texts)))
        cells = (f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, texts))
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="tv-scroll"><table class="tv-table"><thead>{line("th", head)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def note(text: str) -> str:
    """A line in a softer colour."""
    return f'<p class="tv-note">{escape(text)}</p>'


def visible(text: str) -> str:
    """A token for a table: white space that would not be seen, as signs.

    >>> visible(" the"), visible("\\n")
    ('the', '\u21b5')
    """
    if text.strip():
        return text.strip()
    return "".join(_VISIBLE.get(character, character) for character in text) or "\u2205"


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Every token as people read it; what is no whole character as its bytes."""
    texts = [tokenizer.decode([index], skip_special_tokens=False) for index in ids]
    return [
        _unreadable(tokenizer, index) if not text or "\ufffd" in text else visible(text)
        for index, text in zip(ids, texts)
    ]


def _unreadable(tokenizer: Tokenizer, index: int) -> str:
    """The bytes of a token that is part of a character; others as the vocabulary has them."""
    token = tokenizer.tokens[index]
    data = symbols_to_bytes(token) if tokenizer.kind == "byte-bpe" else None
    return token if data is None else data.hex(" ")
