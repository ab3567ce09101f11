"""GLM-4, ChatGLM2 and ChatGLM3: LLaMA with QKV biases and interleaved partial RoPE."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.llama import (
    CONFIG,
    FIXED,
    LLAMA,
    WIDTH_HOOK,
    partial_rope_hook,
    weight_names,
)
from trivium.interop.family import Option, hf_classes, kv_heads_option

FUSED_GATE = {
    "mlp.gate_up_proj": ("feed_forward.gate", "feed_forward.up"),
    "mlp.down_proj": "feed_forward.down",
}
"""The weight names of a gated feed-forward network whose gate and up projection are fused."""

GLM = replace(
    LLAMA,
    model_type="glm",
    architectures=hf_classes(
        "Glm", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    config={
        **CONFIG,
        "vocab_size": Option("vocab_size", 151_552),
        "hidden_size": Option("d_model", 4096),
        "num_hidden_layers": Option("decoder.num_layers", 40),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "num_key_value_heads": kv_heads_option(missing=2, num_heads=32),
        "head_dim": Option("decoder.layers.mixer.head_dim", 128),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 13_696),
        "rms_norm_eps": Option("decoder.layers.norm.eps", 1.5625e-7),
        "attention_bias": Option("decoder.layers.mixer.bias", True),
    },
    fixed={
        **FIXED,
        "decoder.layers.mixer.output_bias": False,
        "decoder.layers.mixer.positions.layout": "interleaved",
        "decoder.layers.feed_forward.bias": False,
    },
    weights=weight_names(FUSED_GATE),
    expected={},
    ignored="",
    hooks=(partial_rope_hook(0.5), WIDTH_HOOK),
    tokenizer_class="",
)
