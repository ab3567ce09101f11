"""GLM-4, ChatGLM2 and ChatGLM3: LLaMA with QKV biases and interleaved partial RoPE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import (
    CONFIG,
    FIXED,
    LLAMA,
    ROPE_HOOK,
    WIDTH_HOOK,
    read_rope,
    rope_options,
    weight_names,
)
from trivium.interop.family import Hook, Option, SpecTree, attention_of, hf_classes, kv_heads_option
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.positions.rotary import Rotary


def _read_rotary(config: ConfigReader, tree: SpecTree) -> None:
    """Read the options of RoPE, which rotates half of every head unless the file says otherwise."""
    rope = rope_options(config)
    factor = config.get("partial_rotary_factor", 0.5)
    tree.set(
        "decoder.layers.mixer.positions.partial_rotary_factor",
        rope.pop("partial_rotary_factor", factor),
    )
    read_rope(config, tree, rope)


def _write_rotary(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the options of RoPE for transformers 5 and for earlier releases."""
    ROPE_HOOK.write(spec, config)
    rotary = attention_of(spec).positions
    if isinstance(rotary, Rotary):
        config["partial_rotary_factor"] = factor = rotary.partial_rotary_factor
        config["rope_parameters"]["partial_rotary_factor"] = factor


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
    weights=weight_names(
        {
            "mlp.gate_up_proj": ("feed_forward.gate", "feed_forward.up"),
            "mlp.down_proj": "feed_forward.down",
        }
    ),
    expected={},
    ignored="",
    hooks=(Hook(_read_rotary, _write_rotary), WIDTH_HOOK),
    tokenizer_class="",
)
