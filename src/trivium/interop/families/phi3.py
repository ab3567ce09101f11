"""Phi-3, Phi-4 and Phi-4-mini (Abdin et al. 2024): LLaMA with fused projections and LongRoPE."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.glm import FUSED_GATE
from trivium.interop.families.llama import (
    CONFIG,
    FIXED,
    LLAMA,
    WIDTH_HOOK,
    partial_rope_hook,
    weight_names,
)
from trivium.interop.families.mistral import read_window, write_window
from trivium.interop.family import QKV, Hook, Option, SpecTree, hf_classes
from trivium.interop.hf_config import ConfigReader

_ROPE = partial_rope_hook(1.0)
_LONGROPE = ("su", "yarn", "longrope")
_ORIGINAL_LENGTH = "original_max_position_embeddings"


def _read_rope(config: ConfigReader, tree: SpecTree) -> None:
    """Read the options of RoPE. The first releases call LongRoPE "su" or "yarn"."""
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name, {})
        kind = rope.get("rope_type", rope.get("type"))
        if kind in _LONGROPE:
            rest = {key: value for key, value in rope.items() if key != "type"}
            config = config.with_option(name, {**rest, "rope_type": "longrope"})
            config = config.with_option(_ORIGINAL_LENGTH, config.get(_ORIGINAL_LENGTH, 4096))
    config.ignore(_ORIGINAL_LENGTH)
    _ROPE.read(config, tree)


def _read_window(config: ConfigReader, tree: SpecTree) -> None:
    """Read the sliding window; by default there is none."""
    read_window(config, tree, default=None)


PHI3 = replace(
    LLAMA,
    model_type="phi3",
    architectures=hf_classes(
        "Phi3", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    config={
        **CONFIG,
        "vocab_size": Option("vocab_size", 32_064),
        "hidden_size": Option("d_model", 3072),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 8192),
        "rms_norm_eps": Option("decoder.layers.norm.eps", 1e-5),
        "resid_pdrop": Option("decoder.dropout", 0.0),
        "embd_pdrop": Option("decoder.dropout", write_only=True),
    },
    fixed={**FIXED, "decoder.layers.mixer.bias": False, "decoder.layers.feed_forward.bias": False},
    weights={
        name: local
        for name, local in weight_names({**FUSED_GATE, "self_attn.qkv_proj": QKV}).items()
        if name.rpartition(".")[2] not in ("q_proj", "k_proj", "v_proj")
    },
    expected={"attention_bias": False, "mlp_bias": False},
    ignored="",
    hooks=(Hook(_read_rope, _ROPE.write), Hook(_read_window, write_window), WIDTH_HOOK),
    is_variant=True,
)
