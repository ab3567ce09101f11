"""Qwen3 (Yang et al. 2025): Qwen2 with QK norm instead of biases."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.llama import FIXED
from trivium.interop.families.qwen2 import QWEN2
from trivium.interop.family import Option, decoder_classes, per_layer

NORM_EPS = ("decoder.layers.norm.eps", "decoder.layers.mixer.qk_norm.eps")
"""The spec fields that the option "rms_norm_eps" sets."""

QK_NORMS = per_layer(
    "model.layers.{i}",
    "decoder",
    {"self_attn.q_norm": "mixer.query_norm", "self_attn.k_norm": "mixer.key_norm"},
)
"""The mapping of the weight names of QK norm."""

QWEN3 = replace(
    QWEN2,
    model_type="qwen3",
    architectures=decoder_classes("Qwen3", span_base="transformer."),
    config={
        **QWEN2.config,
        "head_dim": Option("decoder.layers.mixer.head_dim", 128),
        "rms_norm_eps": Option(NORM_EPS, 1e-6),
        "attention_bias": Option("decoder.layers.mixer.bias", False),
    },
    fixed={
        **FIXED,
        "decoder.layers.mixer.qk_norm.kind": "rms",
        "decoder.layers.feed_forward.bias": False,
    },
    weights={**QWEN2.weights, **QK_NORMS},  # type: ignore[dict-item]
    ignored="",
)
