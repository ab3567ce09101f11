"""The playground tab that shows the attention weights of one layer and head for a text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import gradio as gr
import pandas as pd

from trivium.errors import TriviumError
from trivium.explain.attended_text import MAX_TOKENS, AttentionMap, compute_attention_maps
from trivium.language_model import LanguageModel
from trivium.serve.models import ModelRegistry
from trivium.serve.playground import tabs
from trivium.serve.playground.examples import Examples
from trivium.serve.playground.texts import make_label

_KINDS = ("encoder", "decoder", "cross")


def build_attention_tab(registry: ModelRegistry, models: tabs.Models, opened: Any) -> None:
    """Build the tab that shows attention weights as a table with one row per query.

    Args:
        registry: the served models.
        models: the models of the tab.
        opened: the event that occurs when the tab is opened for the first time.
    """
    first = next(iter(models))

    def is_encoder_decoder(name: str) -> bool:
        """Return whether a model is an encoder-decoder.

        The attention of an encoder-decoder also depends on a target text.
        """
        return models[name].spec.family == "encoder-decoder"

    def make_menu_options(name: str) -> list[dict[str, Any]]:
        """Return the Gradio options of two menus: layers and heads.

        Head 0 is the mean of all heads.
        """
        stacks = models[name].spec.stacks
        layers = max(stack.num_layers for stack in stacks)
        heads = max(each.num_heads for stack in stacks for each in stack.attentions)
        ranges = range(1, 1 + layers), range(1 + heads)
        return [{"choices": list(numbers), "value": numbers[0]} for numbers in ranges]

    with gr.Row():
        model = tabs.make_model_menu(models, "attention")
        layer, head = (
            gr.Dropdown(
                **options, label=make_label(f"attention.{part}"), elem_id=f"attention-{part}"
            )
            for part, options in zip(("layer", "head"), make_menu_options(first))
        )
    source = tabs.make_text_box("attention", "text", Examples(registry, models)("text"))
    with gr.Row(visible=is_encoder_decoder(first)) as of_both:
        target = tabs.make_text_box("attention", "target", key="attention.target", lines=1)
        kinds = [(make_label(f"attention.{kind}"), kind) for kind in _KINDS]
        kind = gr.Radio(kinds, value="cross", label=make_label("attention.kind"))
    run = tabs.make_run_button("attention")
    shown = tabs.make_output_table("attention", "attention.weights")

    async def show_weights(
        name: str, source: str, target: str, kind: str, layer: int, head: int, request: gr.Request
    ) -> Any:
        """Compute the attention weights of a text and return them as a table."""
        if not source:
            raise tabs.make_empty_error(request)
        try:
            async with asyncio.timeout(registry.limits.timeout):
                served = await registry.get_loaded(name)
                with served.keep_loaded():
                    (attention_maps,) = await served.thread.call(
                        compute_batch_attention_maps, [(source, target)], MAX_TOKENS
                    )
            attention_map = attention_maps.get(kind) or next(iter(attention_maps.values()))
            return _make_shaded_table(attention_map, layer, head)
        except Exception as error:
            raise tabs.make_error(error, request) from error

    events = [opened, run.click, source.submit, kind.input, layer.input, head.input]
    inputs = [model, source, target, kind, layer, head]
    looking = gr.on(events, show_weights, inputs, shown, **tabs.EVENT)
    model.input(
        lambda name: (
            gr.Row(visible=is_encoder_decoder(name)),
            *(gr.Dropdown(**options) for options in make_menu_options(name)),
        ),
        model,
        [of_both, layer, head],
        api_visibility="private",
    )
    tabs.clear_on_model_change(model, [shown], looking)
    tabs.clear_on_failure([shown], looking)


def _make_shaded_table(attention_map: AttentionMap, layer: int, head: int) -> Any:
    """Return the attention weights of one head as a table. Larger weights have darker cells.

    `layer` and `head` count from 1; head 0 is the mean of all heads. Raises TriviumError if the
    encoder or decoder has fewer layers or heads.
    """
    num_layers, num_heads, *_ = attention_map.weights.shape
    if layer > num_layers or head > num_heads:
        raise TriviumError(
            f"there are only {num_layers} layers with {num_heads} heads: choose a smaller number."
        )
    weights = attention_map.weights[layer - 1]
    shown = weights.mean(0) if head == 0 else weights[head - 1]
    columns = [f"{number} {key}" for number, key in enumerate(attention_map.keys, 1)]
    frame = pd.DataFrame(shown, columns=columns)
    frame.insert(0, "", attention_map.queries)

    # The square root makes small weights distinguishable. On the darkest blue, text has enough
    # contrast (at least 4.5).
    def shade_cell(weight: float) -> str:
        return f"background-color: rgba(37, 99, 235, {0.65 * weight**0.5:.2f})"

    return frame.style.map(shade_cell, subset=columns).format("{:.2f}", subset=columns)


def compute_batch_attention_maps(
    lm: LanguageModel, items: Sequence[tuple[str, str]]
) -> list[dict[str, AttentionMap]]:
    """Compute attention maps for pairs (source text, target text).

    Only an encoder-decoder uses the target. If the target is blank, the model generates it.

    Returns:
        For each pair, a dict of attention kind ("encoder", "decoder" or "cross") -> attention map.

    Raises:
        TriviumError: a text has more tokens than an attention map can show.
    """
    return [compute_attention_maps(lm, *item) for item in items]
