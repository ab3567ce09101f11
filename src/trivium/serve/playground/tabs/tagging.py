"""Tag the words of a text: coloured spans."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import gradio as gr

from trivium.inference.tag import Tagged
from trivium.serve.playground.asking import plainly, written
from trivium.serve.playground.marks import COLORS, percent, table
from trivium.serve.playground.models import Shown
from trivium.serve.playground.tabs.frame import (
    EVENT,
    choose_model,
    nothing_to_show,
    run_button,
    shown,
)
from trivium.serve.playground.words import Words
from trivium.text.inputs import join_words

_OUTSIDE = "O"


def tagging(models: Shown, words: Words) -> None:
    """Add the tab."""
    names = models.that_can("tag")
    with gr.Tab(words("tag.tab"), id="tag"):
        if not names:
            nothing_to_show(words, "tag")
            return
        with gr.Row(elem_classes="tv-sides"):
            with gr.Column(scale=2, min_width=300):
                model = choose_model(names, words, "tag")
                text = gr.Textbox(
                    label=words("tag.text"),
                    info=words("tag.text.info"),
                    lines=3,
                    max_lines=12,
                    elem_id="tag-text",
                )
                run = run_button(words, "tag")
            with gr.Column(scale=3, min_width=300):
                found = shown("tag")
                with gr.Accordion(words("tag.table"), open=False, elem_id="tag-table-accordion"):
                    rows = shown("tag-table")

        def tag(name: str, text: str) -> tuple[str, str]:
            written(text, words)
            with models.use(name) as model:
                tagged = model.tag(text)
            return _spans(tagged), _table(tagged, words)

        gr.on([run.click, text.submit], plainly(tag, words), [model, text], [found, rows], **EVENT)


def chunks(tagged: Sequence[Tagged]) -> list[tuple[str, list[Tagged]]]:
    """Words that belong together, with what they are; "" where they are nothing.

    B- begins a chunk and I- goes on with it; tags of any other form stand for a word each.

    >>> words = [Tagged("to", "O", 1.0), Tagged("New", "B-LOC", 1.0), Tagged("York", "I-LOC", 1.0)]
    >>> [(kind, [each.word for each in part]) for kind, part in chunks(words)]
    [('', ['to']), ('LOC', ['New', 'York'])]
    """
    found: list[tuple[str, list[Tagged]]] = []
    for each in tagged:
        mark, _, name = each.tag.partition("-")
        parted = mark in ("B", "I") and bool(name)
        kind = name if parted else "" if each.tag == _OUTSIDE else each.tag
        goes_on = (parted and mark == "I") or not kind
        if found and goes_on and found[-1][0] == kind:
            found[-1][1].append(each)
        else:
            found.append((kind, [each]))
    return found


def _spans(tagged: Sequence[Tagged]) -> str:
    parts = chunks(tagged)
    kinds = sorted({kind for kind, _ in parts if kind})
    colors = {kind: place % COLORS for place, kind in enumerate(kinds)}
    pieces = []
    for kind, part in parts:
        text, _ = join_words([each.word for each in part])
        if not kind:
            pieces.append(f"<span>{escape(text)}</span>")
            continue
        least = percent(min(each.score for each in part))
        pieces.append(
            f'<mark class="tv-k{colors[kind]}" title="{escape(kind)} {least}">{escape(text)}'
            f" <b>{escape(kind)}</b></mark>"
        )
    return f'<div class="tv-tagged">{" ".join(pieces)}</div>'


def _table(tagged: Sequence[Tagged], words: Words) -> str:
    head = (words("tag.word"), words("tag.tag"), words("tag.probability"))
    rows = ((each.word, each.tag, percent(each.score)) for each in tagged)
    return table(head, rows, numbers=(2,))
