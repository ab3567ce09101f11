"""The attention weights of any layer and head for one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np
import pandas as pd
import torch

from trivium.errors import TriviumError
from trivium.inference.attention_weights import attention_weights
from trivium.inference.text_model import document_ids, prompt_ids
from trivium.language_model import LanguageModel
from trivium.serve.models import ModelRegistry
from trivium.serve.playground.tabs import EVENT, choose_model, plain_error, run_button, text_box
from trivium.serve.playground.texts import label, text
from trivium.text import Tokenizer

_MAX_TOKENS, _TARGET_TOKENS = 64, 32
_KEPT_SECONDS = 3600


@dataclass(frozen=True)
class AttentionPicture:
    """Tokens that attend, tokens attended to, and weights [L, N, T, S]."""

    queries: list[str]
    keys: list[str]
    weights: np.ndarray

    def table(self, layer: int, head: int) -> Any:
        """One head (or, for 0, their mean) as a table whose cells are shaded by their weight."""
        weights = self.weights[min(layer, len(self.weights)) - 1]
        shown = weights.mean(0) if head == 0 else weights[min(head, len(weights)) - 1]
        columns = [f"{number} {key}" for number, key in enumerate(self.keys, 1)]
        frame = pd.DataFrame(shown, columns=columns)
        frame.insert(0, "", self.queries)
        return frame.style.map(_shade, subset=columns).format("{:.2f}", subset=columns)


def _shade(weight: float) -> str:
    """The square root tells small weights apart."""
    return f"background-color: rgba(37, 99, 235, {weight**0.5:.2f})"


def attention_tab(registry: ModelRegistry, names: list[str]) -> None:
    """Attention as a table of queries and keys."""
    with gr.Row():
        model = choose_model(names, "attention")
        kind = gr.Radio(
            [(label(f"attention.{kind}"), kind) for kind in ("encoder", "decoder", "cross")],
            label=label("attention.kind"),
            elem_id="attention-kind",
        )
        layer = gr.Slider(1, 2, 1, step=1, label=label("attention.layer"))
        head = gr.Slider(0, 2, 0, step=1, label=label("attention.head"))
    source = text_box("attention", "text", "The cat sat on the mat because it was tired.")
    target = text_box("attention", "target", key="attention.target", lines=1)
    run = run_button("attention")
    shown = gr.Dataframe(
        label=label("attention.weights"), interactive=False, elem_id="attention-table"
    )
    kept = gr.State(None, time_to_live=_KEPT_SECONDS)

    async def look(name: str, source: str, target: str, request: gr.Request) -> tuple[Any, ...]:
        if not source:
            raise gr.Error(text("empty", request), print_exception=False)
        try:
            served = await registry.ready(name)
            (pictures,) = await served.scheduler.call(attention_pictures, [(source, target)])
        except Exception as error:
            raise plain_error(error) from error
        first = next(iter(pictures))
        choices = [(label(f"attention.{kind}"), kind) for kind in pictures]
        return pictures, gr.Radio(choices, value=first), *_controls(pictures[first])

    def show(
        pictures: Mapping[str, AttentionPicture] | None, kind: str, layer: float, head: float
    ) -> Any:
        if not pictures or kind not in pictures:
            return gr.skip()
        return pictures[kind].table(round(layer), round(head))

    inputs = [kept, kind, layer, head]
    looked = gr.on(
        [run.click, source.submit],
        look,
        [model, source, target],
        [kept, kind, layer, head],
        **EVENT,
    )
    looked.success(show, inputs, shown, **EVENT)
    quiet = {**EVENT, "show_progress": "hidden"}
    gr.on([kind.input, layer.input, head.input], show, inputs, shown, **quiet)


def _controls(picture: AttentionPicture) -> tuple[gr.Slider, gr.Slider]:
    """Sliders for layer and head, at the first layer and the mean of its heads."""
    layers, heads = picture.weights.shape[:2]
    return gr.Slider(maximum=max(2, layers), value=1), gr.Slider(maximum=heads, value=0)


def attention_pictures(
    lm: LanguageModel, items: Sequence[tuple[str, str]]
) -> list[dict[str, AttentionPicture]]:
    """The attention of a model to texts, by kind: encoder, decoder, cross.

    An encoder-decoder also reads a target; where that is empty, the text it generates itself.

    Raises:
        TriviumError: more tokens than a picture shows.
    """
    return [_pictures(lm, source, target) for source, target in items]


def _pictures(lm: LanguageModel, source: str, target: str) -> dict[str, AttentionPicture]:
    both, device = lm.spec.family == "encoder-decoder", lm.module.device
    decodes = lm.spec.family == "decoder-only"
    reader = lm.text_tokenizer if decodes else lm.source_tokenizer
    ids = prompt_ids(lm, source) if decodes else document_ids(reader, source)
    inputs, target_ids = {}, list[int]()
    if both:
        if target.strip():
            tokens = lm.text_tokenizer.encode(target, add_special_tokens=False).ids
        else:
            output = lm.translate(source, max_new_tokens=_TARGET_TOKENS)
            tokens = lm.text_tokenizer.encode(output, add_special_tokens=False).ids[:_TARGET_TOKENS]
        target_ids = [*lm.generation_rules.decoder_start, *tokens]
        inputs["decoder_input_ids"] = torch.tensor([target_ids], device=device)
    if max(len(ids), len(target_ids)) > _MAX_TOKENS:
        raise TriviumError(f"the text has more than the {_MAX_TOKENS} tokens that fit a picture.")
    attention = attention_weights(lm.module, torch.tensor([ids], device=device), **inputs)
    keys = _names(reader, ids)
    queries = _names(lm.text_tokenizer, target_ids) if both else keys
    kinds = {
        "encoder": (keys, keys, attention.encoder),
        "decoder": (queries, queries, attention.decoder),
        "cross": (queries, keys, attention.cross),
    }
    return {
        kind: AttentionPicture(
            rows, columns, torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
        )
        for kind, (rows, columns, layers) in kinds.items()
        if layers
    }


def _names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [tokenizer.readable_tokens[token_id] for token_id in ids]
