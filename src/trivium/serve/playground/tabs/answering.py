"""Answer a question from a text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import gradio as gr

from trivium.inference.answer import AnswerSpan
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


def answering(models: Shown, words: Words) -> None:
    """Add the tab."""
    names = models.that_can("answer")
    with gr.Tab(words("answer.tab"), id="answer"):
        if not names:
            nothing_to_show(words, "answer")
            return
        with gr.Row(elem_classes="tv-sides"):
            with gr.Column(scale=2, min_width=300):
                model = choose_model(names, words, "answer")
                question = gr.Textbox(
                    label=words("answer.question"), max_lines=3, elem_id="answer-question"
                )
                context = gr.Textbox(
                    label=words("answer.context"), lines=5, max_lines=14, elem_id="answer-context"
                )
                count = gr.Slider(
                    1, 10, 3, step=1, label=words("answer.count"), elem_id="answer-count"
                )
                run = run_button(words, "answer")
            with gr.Column(scale=3, min_width=300):
                found = shown("answer")

        def answer(name: str, question: str, context: str, count: float) -> str:
            written(question, words)
            written(context, words)
            with models.use(name) as model:
                answers = model.answer(question, context, top_k=whole_number(count, 1, 10))
            return _marked(context, answers[0]) + _list(answers, words)

        gr.on(
            [run.click, question.submit],
            plainly(answer, words),
            [model, question, context, count],
            found,
            **EVENT,
        )


def _marked(context: str, best: AnswerSpan) -> str:
    """The text with the best answer marked, if there is one."""
    before, inside = escape(context[: best.start]), escape(context[best.start : best.end])
    marked = f'<mark class="tv-answer">{inside}</mark>' if inside else ""
    return f'<div class="tv-context">{before}{marked}{escape(context[best.end :])}</div>'


def _list(answers: Sequence[AnswerSpan], words: Words) -> str:
    nothing = words("answer.nothing")
    return bars((each.text or nothing, each.score, "") for each in answers)
