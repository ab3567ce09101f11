"""StableLM (Bellagente et al. 2024; Tow et al. 2023): LLaMA with LayerNorm and partial RoPE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, WIDTH_HOOK, partial_rope_hook
from trivium.interop.family import (
    Hook,
    Option,
    SpecTree,
    attention_of,
    hf_classes,
    kv_heads_option,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.blocks import ParallelLayers, SequentialLayers

_EPS = "decoder.layers.norm.eps"
_HEAD_NORMS = {
    "self_attn.q_layernorm.norms.{h}": "mixer.query_norm.norms.{h}",
    "self_attn.k_layernorm.norms.{h}": "mixer.key_norm.norms.{h}",
}


def _read_qk_norm(config: ConfigReader, tree: SpecTree) -> None:
    """Read whether every head of queries and keys has a norm, without bias, of its own."""
    if config.get("qk_layernorm", False):
        norm = {"kind": "layer", "eps": tree.get(_EPS), "bias": False}
        tree.set("decoder.layers.mixer.qk_norm", norm)
        tree.set("decoder.layers.mixer.qk_norm_over", "each-head")


def _write_qk_norm(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write whether every head of queries and keys has a norm."""
    config["qk_layernorm"] = attention_of(spec).qk_norm is not None


STABLELM = replace(
    LLAMA,
    model_type="stablelm",
    architectures=hf_classes(
        "StableLm", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    config={
        **{name: row for name, row in CONFIG.items() if name not in ("rms_norm_eps", "head_dim")},
        "vocab_size": Option("vocab_size", 50_304),
        "hidden_size": Option("d_model", 2560),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "num_key_value_heads": kv_heads_option(missing=32, num_heads=32),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 6912),
        "layer_norm_eps": Option(_EPS, 1e-5),
        "use_qkv_bias": Option("decoder.layers.mixer.bias", False),
        "use_parallel_residual": Option(
            "decoder.layers.block", False, {True: ParallelLayers(), False: SequentialLayers()}
        ),
        "hidden_dropout": Option("decoder.dropout", 0.0),
    },
    fixed={
        **FIXED,
        "decoder.layers.mixer.output_bias": False,
        "decoder.layers.norm.kind": "layer",
        "decoder.layers.feed_forward.bias": False,
    },
    weights={
        **LLAMA.weights,  # type: ignore[dict-item]
        **per_layer("model.layers.{i}", "decoder", _HEAD_NORMS),
    },
    expected={},
    ignored="",
    hooks=(partial_rope_hook(0.25), Hook(_read_qk_norm, _write_qk_norm), WIDTH_HOOK),
    tokenizer_class="",
)
