"""Continue a text: tokens as they come, each with its probability."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import exp, sqrt
from typing import Any

import gradio as gr

from trivium.inference import Sampling, TextStream, prompt_ids
from trivium.inference.text_engine import Text, TextEngine, TokenScore
from trivium.language_model import LanguageModel
from trivium.serve.playground.asking import plainly, whole_number, written
from trivium.serve.playground.marks import note, percent, table, visible
from trivium.serve.playground.models import Shown
from trivium.serve.playground.tabs.frame import (
    EVENT,
    choose_model,
    nothing_to_show,
    run_button,
    shown,
)
from trivium.serve.playground.words import Words

_ALTERNATIVES, _MOST_TOKENS = 5, 512
# How long a model is held at a time, in seconds: then the page is told, and others get a turn.
_TURN = 0.1


def continuation(models: Shown, words: Words) -> None:
    """Add the tab."""
    names = models.that_can("generate")
    with gr.Tab(words("continue.tab"), id="continue"):
        if not names:
            nothing_to_show(words, "continue")
            return
        with gr.Row(elem_classes="tv-sides"):
            with gr.Column(scale=2, min_width=300):
                model = choose_model(names, words, "continue")
                prompt = gr.Textbox(
                    words("continue.example"),
                    label=words("continue.prompt"),
                    lines=3,
                    max_lines=8,
                    elem_id="continue-prompt",
                )
                with gr.Row(elem_classes="tv-buttons"):
                    run = run_button(words, "continue")
                    stop = gr.Button(words("continue.stop"), min_width=90, elem_id="continue-stop")
                with gr.Accordion(words("settings"), open=False, elem_id="continue-settings"):
                    settings = _settings(words)
            with gr.Column(scale=3, min_width=300):
                text = shown("continue")
                told = shown("continue-told", _legend(words))
                with gr.Accordion(
                    words("continue.table"), open=False, elem_id="continue-table-accordion"
                ):
                    rows = shown("continue-table")

        stops: dict[str, threading.Event] = {}
        gr.on(
            [run.click, prompt.submit],
            plainly(_write(models, words, stops), words),
            [model, prompt, *settings],
            [text, told, rows],
            **{**EVENT, "show_progress": "hidden"},
        )

        def halt(request: gr.Request) -> None:
            if found := stops.get(str(request.session_hash)):
                found.set()

        stop.click(halt, **{**EVENT, "show_progress": "hidden"})


def _settings(words: Words) -> list[gr.Slider | gr.Number]:
    def slider(key: str, least: float, most: float, value: float, step: float) -> gr.Slider:
        return gr.Slider(
            least,
            most,
            value,
            step=step,
            label=words(f"continue.{key}"),
            info=None if key == "length" else words(f"continue.{key}.info"),
            elem_id=f"continue-{key}",
        )

    return [
        slider("length", 1, _MOST_TOKENS, 64, 1),
        slider("temperature", 0.0, 2.0, 0.8, 0.05),
        slider("top-k", 0, 200, 0, 1),
        slider("top-p", 0.05, 1.0, 1.0, 0.01),
        slider("min-p", 0.0, 0.5, 0.0, 0.01),
        gr.Number(
            0,
            label=words("continue.seed"),
            info=words("continue.seed.info"),
            precision=0,
            minimum=0,
            elem_id="continue-seed",
        ),
    ]


def _write(
    models: Shown, words: Words, stops: dict[str, threading.Event]
) -> Callable[..., Iterator[tuple[Any, Any, Any]]]:
    def write(
        name: str,
        prompt: str,
        length: float,
        temperature: float,
        top_k: float,
        top_p: float,
        min_p: float,
        seed: float | None,
        request: gr.Request,
    ) -> Iterator[tuple[Any, Any, Any]]:
        sampling = Sampling(
            temperature=temperature,
            top_k=round(top_k) or None,
            top_p=top_p if top_p < 1 else None,
            min_p=min_p or None,
        )
        written(prompt, words)
        with models.use(name) as model:
            engine = model.engine(rows=1)
            text = engine.add(
                prompt,
                max_new_tokens=whole_number(length, 1, _MOST_TOKENS),
                sampling=sampling,
                seed=secrets.randbits(31) if seed is None else round(seed),
                top_logprobs=_ALTERNATIVES,
            )
            pieces = _Pieces(model, prompt, text)
        stop = stops[str(request.session_hash)] = threading.Event()
        began = time.monotonic()
        try:
            while text.finish is None and not stop.is_set():
                with models.use(name):
                    _take_a_turn(engine, text)
                yield pieces.html(), note("\u2026") + _legend(words), gr.skip()
        finally:
            # Also where the reader has gone away.
            stops.pop(str(request.session_hash), None)
            if text.finish is None:
                with models.use(name):
                    engine.cancel(text)
        speed = len(text.ids) / max(1e-6, time.monotonic() - began)
        done = words("continue.done", count=len(text.ids), speed=f"{speed:.0f}")
        end = words(f"continue.end.{text.finish}")
        ended = note(f"{done}; {end}.") + _legend(words)
        yield pieces.html(), ended, _table(text.tokens, words)

    return write


def _take_a_turn(engine: TextEngine, text: Text) -> None:
    end = time.monotonic() + _TURN
    engine.step()
    while text.finish is None and time.monotonic() < end:
        engine.step()


class _Pieces:
    """What of the text each token brings: joined they are the text, with its spaces.

    A token alone does not say that; a character of several tokens comes with the last of them.
    """

    def __init__(self, model: LanguageModel, prompt: str, text: Text) -> None:
        tokenizer, both = model.text_tokenizer, model.spec.family == "encoder-decoder"
        self._before = "" if both else prompt
        self._stream = TextStream(tokenizer, () if both else prompt_ids(tokenizer, prompt))
        self._text, self._pieces, self._whole = text, list[str](), False

    def html(self) -> str:
        """The prompt and the tokens so far: as long as it goes on, only more is added."""
        new = self._text.ids[len(self._pieces) :]
        self._pieces += map(self._stream.push, new)
        if self._text.finish is not None and self._pieces and not self._whole:
            self._pieces[-1] += self._stream.finish()
            self._whole = True
        start = f'<span class="tv-prompt">{escape(self._before)}</span>' if self._before else ""
        return start + "".join(map(_token, self._pieces, self._text.tokens))


def _token(piece: str, token: TokenScore) -> str:
    """A token, as surprising as it is coloured, with what else could have stood there."""
    share = exp(token.log_probability)
    others = "".join(
        f'<li class="{"tv-chosen" if name == token.text else ""}">'
        f"<span>{escape(visible(name))}</span>"
        f'<i style="width:{100 * exp(value):.1f}%"></i><b>{percent(exp(value))}</b></li>'
        for name, value in token.top
    )
    more = (
        f'<span class="tv-more"><b class="tv-head">{escape(visible(token.text))} '
        f"<em>{percent(share)}</em></b><ol>{others}</ol></span>"
    )
    return (
        f'<span class="tv-token{"" if piece else " tv-part"}" tabindex="0" '
        f'style="--p:{100 * sqrt(share):.0f}%">'
        f"{escape(piece)}{more}</span>"
    )


def _table(tokens: Sequence[TokenScore], words: Words) -> str:
    head = (
        "",
        words("continue.table.token"),
        words("continue.table.probability"),
        words("continue.table.others"),
    )
    rows = [
        (
            str(number),
            visible(token.text),
            percent(exp(token.log_probability)),
            " \u00b7 ".join(f"{visible(name)} {percent(exp(value))}" for name, value in token.top),
        )
        for number, token in enumerate(tokens, 1)
    ]
    return table(head, rows, numbers=(0, 2))


def _legend(words: Words) -> str:
    return (
        f'<div class="tv-legend"><span>{escape(words("continue.legend.low"))}</span><i></i>'
        f"<span>{escape(words('continue.legend.high'))}</span></div>"
        f"{note(words('continue.hint'))}"
    )
