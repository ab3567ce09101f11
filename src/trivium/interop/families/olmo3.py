"""OLMo 3 (OLMo Team 2025): OLMo 2 with sliding windows, and RoPE scaled in full attention only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import WIDTH_HOOK, rope_parameters
from trivium.interop.families.modernbert import read_layer_rotary, rotary_by_layer_type
from trivium.interop.families.olmo2 import OLMO2
from trivium.interop.families.qwen2 import read_layer_types, write_layer_types
from trivium.interop.family import Hook, Option, SpecTree, hf_classes
from trivium.interop.hf_config import FULL, SLIDING, ConfigReader
from trivium.models.transformer import TransformerSpec

_BASES = {FULL: 5e5, SLIDING: 5e5}


def _read_layers(config: ConfigReader, tree: SpecTree) -> None:
    """Read the RoPE and the attention of each layer; by default, every 4th is full attention."""
    full = read_layer_rotary(config, FULL, "rope_theta", _BASES[FULL], older="rope_scaling")
    sliding = read_layer_rotary(config, SLIDING, "", _BASES[SLIDING])
    tree.set("decoder.layers.mixer.positions", full)
    window = config.get("sliding_window", None if "sliding_window" in config.file_keys else 4096)
    read_layer_types(config, tree, window, lambda i: (i + 1) % 4 != 0, positions=sliding)


def _write_layers(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the layer types, the sliding window, and the RoPE of each layer type."""
    rotary = rotary_by_layer_type(spec, _BASES)
    window = write_layer_types(spec, config)
    if window is not None:
        config["sliding_window"] = window
    config["rope_parameters"] = {
        kind: rope_parameters(positions, config) for kind, positions in rotary.items()
    }


OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    architectures=hf_classes("Olmo3", "ForCausalLM Model ForSequenceClassification"),
    config={
        **OLMO2.config,
        "vocab_size": Option("vocab_size", 50_304),
        "hidden_size": Option("d_model", 4096),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 11_008),
    },
    hooks=(Hook(_read_layers, _write_layers), WIDTH_HOOK),
    is_variant=True,
)
