"""Turn a source into a target: a translation, a summary, whatever the model was taught."""

from __future__ import annotations

from dataclasses import replace

import gradio as gr

from trivium.serve.playground.asking import plainly, whole_number, written
from trivium.serve.playground.models import Shown
from trivium.serve.playground.tabs.frame import EVENT, choose_model, nothing_to_show, run_button
from trivium.serve.playground.words import Words

_MOST_BEAMS, _MOST_TOKENS = 10, 512


def translation(models: Shown, words: Words) -> None:
    """Add the tab."""
    names = models.that_can("translate")
    with gr.Tab(words("translate.tab"), id="translate"):
        if not names:
            nothing_to_show(words, "translate")
            return
        with gr.Row(elem_classes="tv-sides"):
            with gr.Column(scale=1, min_width=300):
                model = choose_model(names, words, "translate")
                source = gr.Textbox(
                    label=words("translate.source"),
                    info=words("translate.source.info"),
                    lines=5,
                    max_lines=14,
                    elem_id="translate-source",
                )
                run = run_button(words, "translate")
                with gr.Accordion(words("settings"), open=False, elem_id="translate-settings"):
                    beams = gr.Slider(
                        0,
                        _MOST_BEAMS,
                        0,
                        step=1,
                        label=words("translate.beams"),
                        info=words("translate.beams.info"),
                        elem_id="translate-beams",
                    )
                    length = gr.Slider(
                        0,
                        _MOST_TOKENS,
                        0,
                        step=1,
                        label=words("translate.length"),
                        info=words("translate.length.info"),
                        elem_id="translate-length",
                    )
            with gr.Column(scale=1, min_width=300):
                target = gr.Textbox(
                    label=words("translate.target"),
                    lines=5,
                    max_lines=20,
                    interactive=False,
                    buttons=["copy"],
                    elem_id="translate-target",
                )

        def translate(name: str, source: str, beams: float, length: float) -> str:
            lines = written(source, words).splitlines()
            asked = [line for line in lines if line.strip()]
            with models.use(name) as model:
                how = model.usual_beams()
                if beams:
                    how = replace(how, num_beams=whole_number(beams, 1, _MOST_BEAMS))
                limit = whole_number(length, 0, _MOST_TOKENS) or None
                answers = iter(model.translate(asked, beams=how, max_new_tokens=limit))
            return "\n".join(next(answers) if line.strip() else "" for line in lines)

        run.click(plainly(translate, words), [model, source, beams, length], target, **EVENT)
