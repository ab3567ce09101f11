"""SmolLM3 (Hugging Face 2025): LLaMA in which every fourth layer has no RoPE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import (
    FIXED,
    LLAMA,
    WIDTH_HOOK,
    read_rope,
    rope_options,
    write_rope,
)
from trivium.interop.families.qwen2 import read_layer_types, write_layer_types
from trivium.interop.family import Hook, Option, SpecTree, decoder_classes, kv_heads_option
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.positions.rotary import Rotary

_BASE = 2e6


def _read_layers(config: ConfigReader, tree: SpecTree) -> None:
    """Read which layers have RoPE and which have sliding-window attention."""
    read_rope(config, tree, rope_options(config), _BASE)
    count, every = config.num_layers(36), config.get("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers", [(i + 1) % every != 0 for i in range(count)])
    if not isinstance(rotates, list) or len(rotates) < count:
        raise config.unsupported("no_rope_layers", expected="1 or 0 for each layer")
    window, slides = config.get("sliding_window"), config.get("use_sliding_window", False)
    read_layer_types(
        config, tree, window, lambda i: slides and window is not None and not rotates[i]
    )
    for i, layer in enumerate(tree.get("decoder.layers")):
        if not rotates[i]:
            layer["mixer"] = {**layer["mixer"], "positions": None}


def _write_layers(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write which layers have RoPE, the RoPE options, the layer types and the sliding window."""
    positions = [attention.positions for attention in spec.stacks[0].attentions]
    config["no_rope_layers"] = [int(each is not None) for each in positions]
    write_rope(next(filter(None, positions), Rotary(base=_BASE)), config)
    window = write_layer_types(spec, config)
    config |= {"use_sliding_window": window is not None, "sliding_window": window}


SMOLLM3 = replace(
    LLAMA,
    model_type="smollm3",
    architectures=decoder_classes("SmolLM3", span_base="transformer."),
    config={
        **LLAMA.config,
        "vocab_size": Option("vocab_size", 128_256),
        "hidden_size": Option("d_model", 2048),
        "num_hidden_layers": Option("decoder.num_layers", 36),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 16),
        "num_key_value_heads": kv_heads_option(missing=4, num_heads=16),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 11_008),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed=FIXED,
    expected={},
    ignored="max_window_layers",
    hooks=(Hook(_read_layers, _write_layers), WIDTH_HOOK),
    tokenizer_class="",
    is_variant=True,
)
