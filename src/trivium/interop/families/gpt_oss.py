"""gpt-oss (OpenAI 2025): attention sinks, alternating windows, and experts with clamped SwiGLU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, ROPE_HOOK, read_rope, rope_options
from trivium.interop.families.qwen2 import read_layer_types, write_layer_types
from trivium.interop.family import Hook, Option, SpecTree, hf_classes, kv_heads_option, per_layer
from trivium.interop.hf_config import ConfigReader
from trivium.interop.mxfp4 import unpack_mxfp4
from trivium.models.transformer import TransformerSpec
from trivium.nn.activations import Swish
from trivium.nn.feed_forwards.experts import Experts

_EXPERTS, _EXPERT = "decoder.layers.feed_forward", "feed_forward.experts.{e}"
_BASE = 150_000.0
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _read_layers(config: ConfigReader, tree: SpecTree) -> None:
    """Read RoPE (by default YaRN), the windows (by default of every second layer) and SwiGLU."""
    read_rope(config, tree, rope_options(config) or {**_YARN}, _BASE)
    beta = config.get("swiglu_alpha", 1.702)
    tree.set(f"{_EXPERTS}.expert.activation", Swish(beta=beta))
    window = config.get("sliding_window", None if "sliding_window" in config.file_keys else 128)
    read_layer_types(config, tree, window, lambda i: i % 2 == 0)


def _write_layers(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write RoPE, the layer types, the sliding window and the factor in SwiGLU's sigmoid."""
    ROPE_HOOK.write(spec, config)
    window = write_layer_types(spec, config)
    if window is not None:
        config["sliding_window"] = window
    network = spec.stacks[0].every_layer[0].feed_forward
    if not isinstance(network, Experts) or not isinstance(network.expert.activation, Swish):
        raise SpecError("a feed-forward network without experts whose activation is Swish")
    config["swiglu_alpha"] = network.expert.activation.beta


_LAYER = {
    "input_layernorm": "mixer_residual.{norm}",
    **{
        f"self_attn.{hf}_proj": f"mixer.{local}"
        for hf, local in zip("qkvo", ("query", "key", "value", "output"))
    },
    "self_attn.sinks": "mixer.sinks",
    "post_attention_layernorm": "feed_forward_residual.{norm}",
    "mlp.router": "feed_forward.router",
    **{
        f"mlp.experts.{hf}_proj{end}": tuple(f"{_EXPERT}.{part}.{kind}" for part in parts)
        for hf, parts in (("gate_up", ("gate", "up")), ("down", ("down",)))
        for end, kind in (("", "weight"), ("_bias", "bias"))
    },
}

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
        "intermediate_size": Option(f"{_EXPERTS}.expert.d_ff", 2880),
        "rms_norm_eps": Option("decoder.layers.norm.eps", 1e-5),
        "attention_bias": Option("decoder.layers.mixer.bias", True),
        "num_local_experts": Option(f"{_EXPERTS}.num_experts", 128),
        "num_experts_per_tok": Option(f"{_EXPERTS}.top_k", 4),
        "swiglu_limit": Option(f"{_EXPERTS}.expert.clamp", 7.0),
        "router_aux_loss_coef": Option(f"{_EXPERTS}.aux_loss_coef", 0.001),
    },
    fixed={
        **{path: value for path, value in FIXED.items() if "feed_forward" not in path},
        "decoder.layers.mixer.sinks": True,
        f"{_EXPERTS}.kind": "experts",
        f"{_EXPERTS}.router_bias": True,
        f"{_EXPERTS}.expert.gated": True,
        f"{_EXPERTS}.expert.up_offset": 1,
    },
    weights={
        "model.embed_tokens": "tokens",
        **per_layer("model.layers.{i}", "decoder", _LAYER),
        "model.norm": "decoder.norm",
    },
    transposed=("gate_up_proj", "down_proj"),
    interleaved=("gate_up_proj", "gate_up_proj_bias"),
    peft_unsupported=("gate_up_proj", "down_proj"),
    prepare_tensors=unpack_mxfp4,
    expected={"hidden_act": "silu"},
    ignored="output_router_logits initial_context_length experts_per_token quantization_config",
    hooks=(Hook(_read_layers, _write_layers),),
    tokenizer_class="",
)
