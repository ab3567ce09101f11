"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al. 2023): parallel blocks and partial RoPE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import CONFIG, LLAMA, WIDTH_HOOK, partial_rope_hook
from trivium.interop.family import (
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    attention_of,
    hf_classes,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec

_EPS = "decoder.layers.norm.eps"


def read_qk_norm(config: ConfigReader, tree: SpecTree) -> None:
    """Read whether queries and keys are normalized, with the epsilon of all norms."""
    if config.get("qk_layernorm", False):
        tree.set("decoder.layers.mixer.qk_norm", {"kind": "layer", "eps": tree.get(_EPS)})


def write_qk_norm(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write whether queries and keys are normalized."""
    config["qk_layernorm"] = attention_of(spec).qk_norm is not None


_LAYER: NameMap = {
    "input_layernorm": "mixer_residual.pre_norm",
    "self_attn.q_proj": "mixer.query",
    "self_attn.k_proj": "mixer.key",
    "self_attn.v_proj": "mixer.value",
    "self_attn.dense": "mixer.output",
    "self_attn.q_layernorm": "mixer.query_norm",
    "self_attn.k_layernorm": "mixer.key_norm",
    "mlp.fc1": "feed_forward.up",
    "mlp.fc2": "feed_forward.down",
}

PHI = replace(
    LLAMA,
    model_type="phi",
    architectures=hf_classes(
        "Phi", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    config={
        **{name: row for name, row in CONFIG.items() if name != "rms_norm_eps"},
        "vocab_size": Option("vocab_size", 51_200),
        "hidden_size": Option("d_model", 2048),
        "num_hidden_layers": Option("decoder.num_layers", 24),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 8192),
        "hidden_act": activation("gelu_new", "decoder.layers.feed_forward"),
        "layer_norm_eps": Option(_EPS, 1e-5),
        "resid_pdrop": Option("decoder.dropout", 0.0),
        "embd_pdrop": Option("decoder.dropout", write_only=True),
    },
    fixed={
        "decoder.layers.mixer.positions.kind": "rotary",
        "decoder.layers.norm.kind": "layer",
        "decoder.layers.norm_placement": "pre",
        "decoder.layers.block.kind": "parallel",
        "heads.lm.bias": True,
        "heads.classifier.pooling": "last",
        "heads.classifier.bias": False,
        "initialization": {"kind": "normal", "residual_init": "scaled"},
    },
    weights={
        "model.embed_tokens": "tokens",
        **per_layer("model.layers.{i}", "decoder", _LAYER),
        "model.final_layernorm": "decoder.norm",
    },
    heads={kind: {"score": "classifier"} for kind in ("classifier", "tagger")},
    expected={},
    ignored="",
    hooks=(partial_rope_hook(0.5), Hook(read_qk_norm, write_qk_norm), WIDTH_HOOK),
    tokenizer_class="CodeGenTokenizer",
)
