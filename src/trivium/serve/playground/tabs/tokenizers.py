"""The tokenizers of all models side by side on one text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import gradio as gr

from trivium.errors import TriviumError
from trivium.serve.playground.asking import plainly, written
from trivium.serve.playground.models import Shown
from trivium.serve.playground.tabs.frame import EVENT, nothing_to_show, run_button, shown
from trivium.serve.playground.words import Words
from trivium.text import Encoding, Tokenizer

_AT_FIRST, _COLORS = 6, 4


def tokenizers(models: Shown, words: Words) -> None:
    """Add the tab."""
    known = models.tokenizers()
    with gr.Tab(words("tokenizers.tab"), id="tokenizers"):
        if not known:
            nothing_to_show(words, "tokenizers")
            return
        chosen = gr.Dropdown(
            list(known),
            value=list(known)[:_AT_FIRST],
            multiselect=True,
            label=words("tokenizers.models"),
            elem_id="tokenizers-models",
        )
        text = gr.Textbox(
            words("tokenizers.example"),
            label=words("text"),
            lines=2,
            max_lines=8,
            elem_id="tokenizers-text",
        )
        run = run_button(words, "tokenizers")
        found = shown("tokenizers")

        def compare(names: Sequence[str], text: str) -> str:
            written(text, words)
            if not names:
                raise TriviumError(words("tokenizers.models") + "?")
            cards = [_card(name, known[name], text, words) for name in names]
            return f'<div class="tv-cards">{"".join(cards)}</div>'

        gr.on([run.click, text.submit], plainly(compare, words), [chosen, text], found, **EVENT)


def _card(name: str, tokenizer: Tokenizer, text: str, words: Words) -> str:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    count = len(encoding.ids)
    unknown = sum(index == tokenizer.unk_id for index in encoding.ids)
    figures = [
        (str(count), words("tokenizers.count")),
        (f"{len(text.encode()) / max(1, count):.2f}", words("tokenizers.bytes")),
        (f"{len(text) / max(1, count):.2f}", words("tokenizers.characters")),
    ]
    if unknown:
        figures.append((str(unknown), words("tokenizers.unknown")))
    told = "".join(f"<div><b>{number}</b><span>{label}</span></div>" for number, label in figures)
    kind = words("tokenizers.kind", kind=tokenizer.kind, size=f"{tokenizer.vocab_size:,}")
    return (
        f'<section class="tv-card"><h3>{escape(name)}</h3><p class="tv-note">{escape(kind)}</p>'
        f'<div class="tv-figures">{told}</div>'
        f'<div class="tv-chips">{_chips(text, encoding, tokenizer)}</div></section>'
    )


def _chips(text: str, encoding: Encoding, tokenizer: Tokenizer) -> str:
    """The text cut into its tokens, in turning colours; the vocabulary's own token as a title.

    A token that brings no character of its own, a space or a later part of one, shows as a sign.
    """
    pieces, place = [], 0
    for number, (index, token, (start, end)) in enumerate(
        zip(encoding.ids, encoding.tokens, encoding.offsets)
    ):
        pieces.append(escape(text[place:start]))
        part = text[max(start, place) : end]
        if not part:
            part = "\u2423" if tokenizer.decode([index]).isspace() else "\u00b7"
        place = max(place, end)
        kind = "tv-unknown" if index == tokenizer.unk_id else f"tv-k{number % _COLORS}"
        title = escape(f"{token} ({index})", quote=True)
        pieces.append(f'<span class="tv-chip {kind}" title="{title}">{escape(part)}</span>')
    return "".join([*pieces, escape(text[place:])])
