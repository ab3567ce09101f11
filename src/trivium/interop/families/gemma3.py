"""Gemma 3 for text (Gemma Team 2025): Gemma 2 with QK norm instead of soft-capping.

Layers with sliding-window attention have their own RoPE base and no RoPE scaling.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.gemma2 import GEMMA2, SCALES_HOOK
from trivium.interop.families.llama import (
    WIDTH_HOOK,
    read_rope,
    rope_options,
    rope_parameters,
    write_rope,
)
from trivium.interop.families.modernbert import read_layer_rotary, rotary_by_layer_type
from trivium.interop.families.qwen2 import read_layer_types
from trivium.interop.families.qwen3 import QK_NORMS, QWEN3
from trivium.interop.family import Hook, Option, SpecTree, hf_classes
from trivium.interop.hf_config import FULL, SLIDING, ConfigReader
from trivium.models.transformer import TransformerSpec

_ROPE_BASES = {FULL: 1e6, SLIDING: 1e4}
_SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def _read_layer_rope(config: ConfigReader, tree: SpecTree) -> None:
    """Read each layer's RoPE and attention; by default, every 6th layer has full attention."""
    base = config.get("rope_theta", _ROPE_BASES[FULL])
    read_rope(config, tree, {"rope_theta": base, **rope_options(config, FULL)})
    positions = read_layer_rotary(config, SLIDING, "rope_local_base_freq", _ROPE_BASES[SLIDING])
    window, every = config.require("sliding_window", 4096), config.get("sliding_window_pattern", 6)
    read_layer_types(config, tree, window, lambda i: (i + 1) % every > 0, positions=positions)


def _write_layer_rope(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the RoPE of full-attention layers and of sliding-window layers."""
    rotary = rotary_by_layer_type(spec, _ROPE_BASES)
    write_rope(rotary[FULL], config)
    config["rope_local_base_freq"] = rotary[SLIDING].base
    sliding = rope_parameters(rotary[SLIDING], config)
    config["rope_parameters"] = {FULL: config["rope_parameters"], SLIDING: sliding}


GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    architectures=hf_classes("Gemma3", "ForCausalLM")
    | hf_classes("Gemma3Text", "Model ForSequenceClassification"),
    config={
        **GEMMA2.config,
        "vocab_size": Option("vocab_size", 262_208),
        "rms_norm_eps": QWEN3.config["rms_norm_eps"],
    },
    fixed={
        **GEMMA2.fixed,
        "decoder.layers.mixer.qk_norm.kind": "rms",
        "decoder.layers.mixer.qk_norm.offset": 1,
    },
    weights={**GEMMA2.weights, **QK_NORMS},  # type: ignore[dict-item]
    expected={**GEMMA2.expected, **dict.fromkeys(_SOFT_CAPS)},
    ignored=f"{GEMMA2.ignored} _sliding_window_pattern",
    hooks=(SCALES_HOOK, WIDTH_HOOK, Hook(_read_layer_rope, _write_layer_rope)),
)
