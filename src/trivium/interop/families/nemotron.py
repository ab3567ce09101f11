"""Nemotron (Parmar et al. 2024): LayerNorm1P, squared ReLU and partial RoPE."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, partial_rope_hook, weight_names
from trivium.interop.family import Option, activation, decoder_classes

NEMOTRON = replace(
    LLAMA,
    model_type="nemotron",
    architectures=decoder_classes("Nemotron", span_base="transformer."),
    config={
        **{name: row for name, row in CONFIG.items() if name != "rms_norm_eps"},
        "vocab_size": Option("vocab_size", 256_000),
        "hidden_size": Option("d_model", 6144),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 48),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 24_576),
        "hidden_act": activation("relu2", "decoder.layers.feed_forward"),
        "norm_eps": Option("decoder.layers.norm.eps", 1e-5),
        "attention_bias": Option("decoder.layers.mixer.bias", False),
        "mlp_bias": Option("decoder.layers.feed_forward.bias", False),
    },
    fixed={
        **FIXED,
        "decoder.layers.feed_forward.gated": False,
        "decoder.layers.norm.kind": "layer",
        "decoder.layers.norm.offset": 1,
    },
    weights=weight_names({"mlp.up_proj": "feed_forward.up", "mlp.down_proj": "feed_forward.down"}),
    expected={},
    ignored="",
    hooks=(partial_rope_hook(0.5),),
    tokenizer_class="",
)
