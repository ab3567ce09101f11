"""Classify a text, or a pair of texts."""

from __future__ import annotations

import gradio as gr

from trivium.language_model import LanguageModel
from trivium.serve.playground.asking import plainly, written
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


def classification(models: Shown, words: Words) -> None:
    """Add the tab."""
    names = models.that_can("classify")
    with gr.Tab(words("classify.tab"), id="classify"):
        if not names:
            nothing_to_show(words, "classify")
            return
        with gr.Row(elem_classes="tv-sides"):
            with gr.Column(scale=2, min_width=300):
                model = choose_model(names, words, "classify")
                text = gr.Textbox(
                    label=words("classify.text"), lines=3, max_lines=12, elem_id="classify-text"
                )
                pair = gr.Textbox(
                    label=words("classify.pair"),
                    info=words("classify.pair.info"),
                    lines=1,
                    max_lines=8,
                    elem_id="classify-pair",
                )
                run = run_button(words, "classify")
            with gr.Column(scale=3, min_width=300):
                found = shown("classify")

        def classify(name: str, text: str, pair: str) -> str:
            written(text, words)
            second = written(pair, words) if pair and pair.strip() else None
            with models.use(name) as model:
                _warn_of_a_cut(model, text, second, words)
                answer = model.classify(text, second)
            if not answer.scores:
                return (
                    f'<p class="tv-number"><span>{words("classify.number")}</span> '
                    f"{answer.score:.4g}</p>"
                )
            return bars((label, share, "") for label, share in answer.scores.items())

        gr.on(
            [run.click, text.submit, pair.submit],
            plainly(classify, words),
            [model, text, pair],
            found,
            **EVENT,
        )


def _warn_of_a_cut(model: LanguageModel, text: str, pair: str | None, words: Words) -> None:
    limit = model.max_length
    if limit is not None and len(model.text_tokenizer.encode(text, pair).ids) > limit:
        gr.Warning(words("warning.cut", limit=limit), title=words("warning"))
