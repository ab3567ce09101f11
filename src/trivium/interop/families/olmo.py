"""OLMo (Groeneveld et al. 2024): LLaMA with LayerNorm without weights and clipped QKV."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA
from trivium.interop.family import Hook, Option, SpecTree, attention_of, hf_classes
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec


def _read_clip(config: ConfigReader, tree: SpecTree) -> None:
    """Read the limit of the elements of queries, keys and values; null means no limit."""
    tree.set("decoder.layers.mixer.qkv_clip", config.get("clip_qkv"))


def _write_clip(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the limit of the elements of queries, keys and values."""
    config["clip_qkv"] = attention_of(spec).qkv_clip


OLMO = replace(
    LLAMA,
    model_type="olmo",
    architectures=hf_classes("Olmo", "ForCausalLM Model ForSequenceClassification"),
    config={
        **{name: row for name, row in CONFIG.items() if name != "rms_norm_eps"},
        "vocab_size": Option("vocab_size", 50_304),
        "hidden_size": Option("d_model", 4096),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 11_008),
        "attention_bias": Option("decoder.layers.mixer.bias", False),
    },
    fixed={
        **FIXED,
        "decoder.layers.norm": {"kind": "layer", "eps": 1e-5, "weight": False, "bias": False},
        "decoder.layers.feed_forward.bias": False,
    },
    expected={},
    ignored="rms_norm_eps",
    hooks=(*LLAMA.hooks, Hook(_read_clip, _write_clip)),
    tokenizer_class="",
)
