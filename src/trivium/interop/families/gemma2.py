"""Gemma 2 (Gemma Team 2024): soft-capping, sandwich norms, sliding windows in alternate layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, ROPE_HOOK
from trivium.interop.families.qwen2 import read_layer_types, write_layer_types
from trivium.interop.family import (
    Hook,
    Option,
    SpecTree,
    activation,
    attention_of,
    hf_classes,
    kv_heads_option,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.heads.vocabulary import LMHead
from trivium.models.transformer import TransformerSpec


def _read_scales(config: ConfigReader, tree: SpecTree) -> None:
    """Read the scales of the token embeddings and of the attention scores."""
    tree.set("embedding.scale", tree.get("d_model") ** 0.5)
    tree.set("decoder.layers.mixer.scale", config.require("query_pre_attn_scalar", 256) ** -0.5)


def _write_scale_and_window(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the scale of the attention scores, the layer types and the sliding window."""
    # The option is an integer; any other scale is detected when the config is read back.
    config["query_pre_attn_scalar"] = max(round(attention_of(spec).score_scale ** -2), 1)
    window = write_layer_types(spec, config)
    if window is not None:
        config["sliding_window"] = window


SCALES_HOOK = Hook(_read_scales, _write_scale_and_window)
"""The hook for the embedding and attention scales; it also writes the sliding windows."""


def _read_caps_and_window(config: ConfigReader, tree: SpecTree) -> None:
    """Read the soft caps (null means no cap) and the layers with sliding-window attention."""
    for name, path, default in (
        ("attn_logit_softcapping", "decoder.layers.mixer.soft_cap", 50.0),
        ("final_logit_softcapping", "heads.lm.soft_cap", 30.0),
    ):
        tree.set(path, config.get(name, None if name in config.file_keys else default))
    window = config.require("sliding_window", 4096)
    read_layer_types(config, tree, window, lambda layer: layer % 2 == 0)


def _write_soft_caps(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the soft caps of the attention scores and of the logits."""
    config["attn_logit_softcapping"] = attention_of(spec).soft_cap
    for head in spec.heads:
        if isinstance(head, LMHead):
            config["final_logit_softcapping"] = head.soft_cap


_LAYER = {
    "input_layernorm": "mixer_residual.pre_norm",
    "post_attention_layernorm": "mixer_residual.post_sublayer_norm",
    "pre_feedforward_layernorm": "feed_forward_residual.pre_norm",
    "post_feedforward_layernorm": "feed_forward_residual.post_sublayer_norm",
}

GEMMA2 = replace(
    LLAMA,
    model_type="gemma2",
    architectures=hf_classes(
        "Gemma2", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    # The activation option has a different name in this family.
    config={
        **{name: row for name, row in CONFIG.items() if name != "hidden_act"},
        "vocab_size": Option("vocab_size", 256_000),
        "hidden_size": Option("d_model", 2304),
        "num_hidden_layers": Option("decoder.num_layers", 26),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 8),
        "num_key_value_heads": kv_heads_option(missing=4, num_heads=8),
        "head_dim": Option("decoder.layers.mixer.head_dim", 256),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 9216),
        "hidden_activation": activation("gelu_pytorch_tanh", "decoder.layers.feed_forward"),
        "attention_bias": Option("decoder.layers.mixer.bias", False),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed={
        **FIXED,
        "decoder.layers.norm.offset": 1,
        "decoder.layers.norm_placement": "sandwich",
        "decoder.layers.feed_forward.bias": False,
    },
    weights={
        **LLAMA.weights,  # type: ignore[dict-item]
        **per_layer("model.layers.{i}", "decoder", _LAYER),
    },
    expected={"use_bidirectional_attention": False},
    # The first releases set the activation twice; the value of `hidden_act` is wrong.
    ignored="hidden_act cache_implementation sliding_window_size",
    hooks=(ROPE_HOOK, SCALES_HOOK, Hook(_read_caps_and_window, _write_soft_caps)),
    tokenizer_class="GemmaTokenizer",
)
