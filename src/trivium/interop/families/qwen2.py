"""Qwen2 and 2.5 (Yang et al. 2024): LLaMA with biases in the QKV projections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, ROPE_HOOK
from trivium.interop.family import Hook, Option, SpecTree, decoder_classes, kv_heads_option
from trivium.interop.hf_config import FULL, SLIDING, ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.patterns import Sliding


def read_layer_types(
    config: ConfigReader,
    tree: SpecTree,
    window: int | None,
    slides: Callable[[int], bool],
    window_option: str = "sliding_window",
    least: int = 2,
    **sliding_fields: Any,
) -> None:
    """Set full or sliding-window attention for each layer, as in "layer_types".

    Args:
        config: the options of the `config.json`.
        tree: the spec under construction; only the attention patterns of its mixer are not set yet.
        window: the size of the sliding window, including the query position itself.
        slides: a function that decides, if the file lacks "layer_types", whether the layer with a
            0-based index has a sliding window.
        window_option: the name of the window option in the file, for error messages.
        least: the smallest supported value of this option, for error messages.
        sliding_fields: mixer fields with other values in the layers with sliding windows.
    """
    [stack] = tree.stacks
    kinds = config.layer_types(slides, tree.get(f"{stack}.num_layers"))
    if SLIDING in kinds and (window is None or window < 2):
        raise config.unsupported(
            window_option, expected=f"{least} or more for layers that have one"
        )
    full = {**tree.get(f"{stack}.layers.mixer"), "kind": "attention"}
    pattern = {"kind": "sliding", "window": (window or 2) - 1}
    local = {**full, "pattern": pattern, **sliding_fields}
    tree.repeat_per_mixer(stack, [local if kind == SLIDING else full for kind in kinds])


def write_layer_types(spec: TransformerSpec, config: dict[str, Any]) -> int | None:
    """Write "layer_types": full or sliding-window attention for each layer.

    Returns the size of the sliding window, including the query position itself, or None if no layer
    has one.
    """
    patterns = [attention.pattern for attention in spec.stacks[0].attentions]
    windows = [each.window + 1 for each in patterns if isinstance(each, Sliding)]
    config["layer_types"] = [SLIDING if isinstance(p, Sliding) else FULL for p in patterns]
    return windows[0] if windows else None


def _read_window(config: ConfigReader, tree: SpecTree) -> None:
    window = config.get("sliding_window", None if "sliding_window" in config.file_keys else 4096)
    window = window if config.get("use_sliding_window", False) else None
    first = config.get("max_window_layers", 28)
    read_layer_types(config, tree, window, lambda layer: window is not None and layer >= first)


def _write_window(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the layer types and the sliding window."""
    window = write_layer_types(spec, config)
    config |= {"use_sliding_window": window is not None, "sliding_window": window}


QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    architectures=decoder_classes("Qwen2", span_base="transformer."),
    config={
        **CONFIG,
        "vocab_size": Option("vocab_size", 151_936),
        "hidden_size": Option("d_model", 4096),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "num_key_value_heads": kv_heads_option(missing=32, num_heads=32),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 22_016),
    },
    fixed={
        **FIXED,
        "decoder.layers.mixer.bias": True,
        "decoder.layers.mixer.output_bias": False,
        "decoder.layers.feed_forward.bias": False,
    },
    ignored="use_mrope",
    expected={},
    hooks=(ROPE_HOOK, Hook(_read_window, _write_window)),
)
