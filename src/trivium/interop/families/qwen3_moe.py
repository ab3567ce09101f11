"""Qwen3-MoE (Yang et al. 2025): Qwen3 with experts instead of a feed-forward network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import ROPE_HOOK
from trivium.interop.families.mistral import read_window, write_window
from trivium.interop.families.qwen2_moe import MOE_CONFIG, MOE_FIXED, QWEN2_MOE
from trivium.interop.families.qwen3 import NORM_EPS, QK_NORMS, QWEN3
from trivium.interop.family import Hook, Option, SpecTree, decoder_classes, kv_heads_option
from trivium.interop.hf_config import ConfigReader
from trivium.interop.sparse_layers import EXPERTS, SparseLayers
from trivium.models.transformer import TransformerSpec


def _read_window(config: ConfigReader, tree: SpecTree) -> None:
    """Read the sliding window of all layers."""
    if config.get("use_sliding_window", False):
        read_window(config, tree)
    config.ignore("sliding_window", "max_window_layers")


def _write_window(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the sliding window of all layers."""
    write_window(spec, config)
    config["use_sliding_window"] = config["sliding_window"] is not None


QWEN3_MOE = replace(
    QWEN2_MOE,
    model_type="qwen3_moe",
    architectures=decoder_classes("Qwen3Moe", span_base="transformer."),
    config={
        **{name: row for name, row in QWEN2_MOE.config.items() if name != "qkv_bias"},
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "num_key_value_heads": kv_heads_option(missing=4, num_heads=32),
        "rms_norm_eps": Option(NORM_EPS, 1e-6),
        "attention_bias": QWEN3.config["attention_bias"],
        "num_experts": Option(
            f"{EXPERTS}.num_experts", lambda config: config.get("num_local_experts", 128)
        ),
        "num_experts_per_tok": Option(f"{EXPERTS}.top_k", 8),
        "moe_intermediate_size": Option(f"{EXPERTS}.expert.d_ff", 768),
    },
    fixed={**MOE_FIXED, "decoder.layers.mixer.qk_norm.kind": "rms"},
    peft_unsupported=("gate",),
    weights={**QWEN2_MOE.weights, **QK_NORMS},  # type: ignore[dict-item]
    ignored="output_router_logits",
    hooks=(ROPE_HOOK, Hook(_read_window, _write_window), SparseLayers(MOE_CONFIG, 6144).hook),
)
