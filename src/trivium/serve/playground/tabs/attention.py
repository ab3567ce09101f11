"""Who looks at whom: the attention of any layer and head for a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np
import torch

from trivium.errors import TriviumError
from trivium.inference import prompt_ids
from trivium.inference.attention_weights import attention_weights
from trivium.inference.fill_mask import document_ids
from trivium.language_model import LanguageModel
from trivium.serve.playground.asking import plainly, whole_number, written
from trivium.serve.playground.heat import HEAT_SCRIPT, heat_map
from trivium.serve.playground.marks import token_texts
from trivium.serve.playground.models import Shown
from trivium.serve.playground.tabs.frame import EVENT, choose_model, nothing_to_show, run_button
from trivium.serve.playground.words import Words

_MOST_TOKENS, _TARGET_TOKENS = 64, 32
# How long the numbers of a reader wait for the next choice of a head, in seconds.
_KEPT = 3600


@dataclass(frozen=True)
class Seen:
    """Attention of one kind: tokens that look, tokens they look at, [N, T, S] of every layer."""

    rows: list[str]
    columns: list[str]
    layers: list[np.ndarray]


def attention(models: Shown, words: Words) -> None:
    """Add the tab."""
    names = models.that_attend()
    with gr.Tab(words("attention.tab"), id="attention"):
        if not names:
            nothing_to_show(words, "attention")
            return
        writers = models.that_can("translate")
        with gr.Row(elem_classes="tv-sides"):
            with gr.Column(scale=2, min_width=300):
                model = choose_model(names, words, "attention")
                text = gr.Textbox(
                    words("attention.example"),
                    label=words("attention.text"),
                    lines=2,
                    max_lines=6,
                    elem_id="attention-text",
                )
                target = gr.Textbox(
                    label=words("attention.target"),
                    info=words("attention.target.info"),
                    max_lines=6,
                    visible=names[0] in writers,
                    elem_id="attention-target",
                )
                run = run_button(words, "attention")
                kind = gr.Radio(
                    [],
                    label=words("attention.kind"),
                    visible=False,
                    elem_id="attention-kind",
                )
                with gr.Row(elem_classes="tv-buttons"):
                    layer = gr.Slider(
                        1,
                        2,
                        1,
                        step=1,
                        label=words("attention.layer"),
                        visible=False,
                        elem_id="attention-layer",
                    )
                    head = gr.Slider(
                        0,
                        2,
                        0,
                        step=1,
                        label=words("attention.head"),
                        visible=False,
                        elem_id="attention-head",
                    )
            with gr.Column(scale=3, min_width=300):
                picture = gr.HTML(
                    elem_id="attention-shown", elem_classes="tv-shown", js_on_load=HEAT_SCRIPT
                )
        kept = gr.State(None, time_to_live=_KEPT)

        def look(name: str, text: str, target: str) -> tuple[Any, ...]:
            written(text, words)
            with models.use(name) as model:
                seen = attention_of(model, text, target or "", words)
            first = next(iter(seen))
            choices = [(words(f"attention.{each}"), each) for each in seen]
            chosen = gr.Radio(choices, value=first, visible=len(seen) > 1)
            return seen, chosen, *_sliders(seen[first]), _picture(seen[first], 1, 0, words)

        def other_kind(seen: dict[str, Seen] | None, kind: str) -> tuple[Any, ...]:
            if not seen or kind not in seen:
                return gr.skip(), gr.skip(), gr.skip()
            return *_sliders(seen[kind]), _picture(seen[kind], 1, 0, words)

        def other_head(seen: dict[str, Seen] | None, kind: str, layer: float, head: float) -> Any:
            if not seen or kind not in seen:
                return gr.skip()
            return _picture(seen[kind], round(layer), round(head), words)

        quiet = {**EVENT, "show_progress": "hidden"}
        gr.on(
            [run.click, text.submit, target.submit],
            plainly(look, words),
            [model, text, target],
            [kept, kind, layer, head, picture],
            **EVENT,
        )
        model.change(lambda name: gr.Textbox(visible=name in writers), model, target, **quiet)
        kind.input(plainly(other_kind, words), [kept, kind], [layer, head, picture], **quiet)
        gr.on(
            [layer.input, head.input],
            plainly(other_head, words),
            [kept, kind, layer, head],
            picture,
            trigger_mode="always_last",
            **quiet,
        )


def attention_of(model: LanguageModel, text: str, target: str, words: Words) -> dict[str, Seen]:
    """The attention of a model to a text, by its kinds: encoder, decoder, cross.

    An encoder-decoder also reads a target; where it is empty, what the model writes itself.

    Raises:
        TriviumError: more tokens than a picture holds.
    """
    tokenizer, both = model.text_tokenizer, model.spec.family == "encoder-decoder"
    read = {"encoder-only": document_ids, "encoder-decoder": document_ids}
    reader = model.source_tokenizer if both else tokenizer
    ids = list(read.get(model.spec.family, prompt_ids)(reader, text))
    _check_length(ids, words)
    given: dict[str, torch.Tensor] = {}
    target_ids: list[int] = []
    if both:
        told = target.strip() or model.translate(text, max_new_tokens=_TARGET_TOKENS)
        start = list(model.decoder_start(tokenizer))
        target_ids = [*start, *tokenizer.encode(told, add_special_tokens=False).ids]
        _check_length(target_ids, words)
        given["decoder_input_ids"] = torch.tensor([target_ids], device=model.module.device)
    found = attention_weights(
        model.module, torch.tensor([ids], device=model.module.device), **given
    )
    names, target_names = token_texts(reader, ids), token_texts(tokenizer, target_ids)
    own = target_names if both else names
    kinds = {
        "encoder": (names, names, found.encoder),
        "decoder": (own, own, found.decoder),
        "cross": (own, names, found.cross),
    }
    return {
        kind: Seen(rows, columns, [layer[0].cpu().numpy() for layer in layers])
        for kind, (rows, columns, layers) in kinds.items()
        if layers
    }


def _check_length(ids: list[int], words: Words) -> None:
    if len(ids) > _MOST_TOKENS:
        raise TriviumError(words("attention.long", count=len(ids), limit=_MOST_TOKENS))


def _sliders(seen: Seen) -> tuple[gr.Slider, gr.Slider]:
    """Layer and head at their beginning, as far as they go; a slider of one place is hidden."""
    layers, heads = len(seen.layers), len(seen.layers[0])
    return (
        gr.Slider(maximum=max(2, layers), value=1, visible=layers > 1),
        gr.Slider(maximum=max(2, heads), value=0, visible=heads > 1),
    )


def _picture(seen: Seen, layer: int, head: int, words: Words) -> str:
    weights = seen.layers[whole_number(layer, 1, len(seen.layers)) - 1]
    head = whole_number(head, 0, len(weights))
    shares = weights.mean(0) if head == 0 else weights[head - 1]
    return heat_map(
        seen.rows,
        seen.columns,
        shares,
        verb=words("attention.said"),
        note=words("attention.rows"),
    )
