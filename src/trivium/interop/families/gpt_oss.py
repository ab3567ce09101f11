"""gpt-oss (OpenAI 2025): attention sinks, alternating windows, and experts with clamped SwiGLU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import (
    CONFIG,
    LLAMA,
    ORIGINAL_LENGTH,
    ROPE_HOOK,
    read_rope,
    rope_options,
    weight_names,
)
from trivium.interop.families.mixtral import MIXTRAL
from trivium.interop.families.qwen2 import read_layer_types, write_layer_types
from trivium.interop.family import Hook, Option, SpecTree, hf_classes, kv_heads_option
from trivium.interop.hf_config import ConfigReader
from trivium.interop.mxfp4 import unpack_mxfp4
from trivium.interop.sparse_layers import EXPERTS
from trivium.models.transformer import TransformerSpec

_EXPERT = "feed_forward.experts.{e}"
_BIASES = ("decoder.layers.mixer.bias", f"{EXPERTS}.expert.bias")
_YARN = {"rope_type": "yarn", "factor": 32.0, "truncate": False, ORIGINAL_LENGTH: 4096}


def _read_layers(config: ConfigReader, tree: SpecTree) -> None:
    """Read RoPE (by default YaRN) and the windows (by default of every second layer)."""
    read_rope(config, tree, rope_options(config) or {**_YARN}, base=150_000.0)
    if config.get("swiglu_alpha", 1.0) <= 0:
        raise config.unsupported("swiglu_alpha", expected="a number above 0")
    window = config.get("sliding_window", None if "sliding_window" in config.file_keys else 128)
    read_layer_types(config, tree, window, lambda i: i % 2 == 0)


def _write_layers(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write RoPE, the layer types and the sliding window."""
    ROPE_HOOK.write(spec, config)
    config["sliding_window"] = write_layer_types(spec, config) or 128


GPT_OSS = replace(
    LLAMA,
    model_type="gpt_oss",
    architectures=hf_classes(
        "GptOss", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    config={
        **{name: row for name, row in CONFIG.items() if name != "hidden_act"},
        "vocab_size": Option("vocab_size", 201_088),
        "hidden_size": Option("d_model", 2880),
        "num_hidden_layers": Option("decoder.num_layers", 36),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 64),
        "num_key_value_heads": kv_heads_option(missing=8, num_heads=64),
        "head_dim": Option("decoder.layers.mixer.head_dim", 64),
        "intermediate_size": Option(f"{EXPERTS}.expert.d_ff", 2880),
        "rms_norm_eps": Option("decoder.layers.norm.eps", 1e-5),
        "attention_bias": Option("decoder.layers.mixer.bias", True),
        "num_local_experts": Option(f"{EXPERTS}.num_experts", 128),
        "num_experts_per_tok": Option(f"{EXPERTS}.top_k", 4),
        "swiglu_alpha": Option(f"{EXPERTS}.expert.activation.beta", 1.702),
        "swiglu_limit": Option(f"{EXPERTS}.expert.clamp", 7.0),
        "router_aux_loss_coef": Option(f"{EXPERTS}.aux_loss_coef", 0.001),
    },
    fixed={
        **{path: value for path, value in MIXTRAL.fixed.items() if path not in _BIASES},
        "decoder.layers.mixer.sinks": True,
        f"{EXPERTS}.router_bias": True,
        f"{EXPERTS}.expert.up_offset": 1,
    },
    weights=weight_names(
        {
            "self_attn.sinks": "mixer.sinks",
            "mlp.router": "feed_forward.router",
            **{
                f"mlp.experts.{hf}_proj{end}": tuple(f"{_EXPERT}.{part}.{kind}" for part in parts)
                for hf, parts in (("gate_up", ("gate", "up")), ("down", ("down",)))
                for end, kind in (("", "weight"), ("_bias", "bias"))
            },
        }
    ),
    transposed=("gate_up_proj", "down_proj"),
    interleaved=("gate_up_proj", "gate_up_proj_bias"),
    peft_unsupported=("gate_up_proj", "down_proj"),
    prepare_tensors=unpack_mxfp4,
    expected={"hidden_act": "silu"},
    ignored="output_router_logits initial_context_length experts_per_token quantization_config",
    hooks=(Hook(_read_layers, _write_layers),),
    tokenizer_class="",
)
