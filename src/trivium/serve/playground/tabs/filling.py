"""Fill the masks of a text."""

from __future__ import annotations

import gradio as gr

from trivium.inference.fill_mask import Fill
from trivium.serve.playground.asking import plainly, whole_number, written
from trivium.serve.playground.marks import bars
from trivium.serve.playground.models import Shown
from trivium.serve.playground.tabs.frame import (
    EVENT,
    choose_model,
    nothing_to_show,
    run_button,
    shown,
)
from trivium.serve.playground.words import Words
from trivium.text import Tokenizer

_MASKS = ("[MASK]", "<mask>")


def filling(models: Shown, words: Words) -> None:
    """Add the tab."""
    names = models.that_can("fill_mask")
    with gr.Tab(words("fill.tab"), id="fill"):
        if not names:
            nothing_to_show(words, "fill")
            return
        with gr.Row(elem_classes="tv-sides"):
            with gr.Column(scale=2, min_width=300):
                model = choose_model(names, words, "fill")
                text = gr.Textbox(
                    words("fill.example"),
                    label=words("fill.text"),
                    info=words("fill.text.info"),
                    lines=3,
                    max_lines=8,
                    elem_id="fill-text",
                )
                count = gr.Slider(1, 10, 5, step=1, label=words("fill.count"), elem_id="fill-count")
                run = run_button(words, "fill")
            with gr.Column(scale=3, min_width=300):
                found = shown("fill")

        def fill(name: str, text: str, count: float) -> str:
            with models.use(name) as model:
                asked = with_own_mask(written(text, words), model.text_tokenizer)
                fills = model.fill_mask(asked, top_k=whole_number(count, 1, 10))
                together = model.spec.family == "encoder-decoder"
            of_each = fills if fills and isinstance(fills[0], list) else [fills]
            return "".join(
                _gap(number, each, together, len(of_each), words)
                for number, each in enumerate(of_each, 1)
            )

        gr.on([run.click, text.submit], plainly(fill, words), [model, text, count], found, **EVENT)


def with_own_mask(text: str, tokenizer: Tokenizer) -> str:
    """The text with a mask of another tokenizer as this one writes it.

    So a text need not be changed to try it on another model.
    """
    own = tokenizer.roles.get("mask") or ("<mask>" if tokenizer.sentinel_ids else None)
    if own is None or own in text:
        return text
    for other in _MASKS:
        text = text.replace(other, own)
    return text


def _gap(number: int, fills: list[Fill], together: bool, gaps: int, words: Words) -> str:
    title = words("fill.gaps") if together else words("fill.mask", number=number)
    heading = f"<h3>{title}</h3>" if together or gaps > 1 else ""
    nothing = words("fill.nothing")
    return heading + bars((each.token or nothing, each.score, each.sequence) for each in fills)
