"""Qwen1.5-MoE and Qwen2-MoE (Yang et al. 2024): experts, and a shared expert with a gate."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.llama import CONFIG, FIXED, ROPE_HOOK, weight_names
from trivium.interop.families.qwen2 import QWEN2, read_layer_types, write_layer_types
from trivium.interop.family import (
    Hook,
    Option,
    SpecTree,
    activation,
    decoder_classes,
    kv_heads_option,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.feed_forwards.experts import Experts

EXPERTS = "decoder.layers.feed_forward"
MOE_CONFIG = {
    "hidden_act": activation("silu", f"{EXPERTS}.expert"),
    "num_experts": Option(f"{EXPERTS}.num_experts", 60),
    "num_experts_per_tok": Option(f"{EXPERTS}.top_k", 4),
    "moe_intermediate_size": Option(f"{EXPERTS}.expert.d_ff", 1408),
    "norm_topk_prob": Option(f"{EXPERTS}.normalized", False),
    "router_aux_loss_coef": Option(f"{EXPERTS}.aux_loss_coef", 0.001),
}
MOE_FIXED = {
    **{path: value for path, value in FIXED.items() if "feed_forward" not in path},
    f"{EXPERTS}.kind": "experts",
    f"{EXPERTS}.expert.gated": True,
    f"{EXPERTS}.expert.bias": False,
}
_EXPERT = "feed_forward.experts.{e}"
MOE_WEIGHTS = weight_names(
    {
        "mlp.gate": "feed_forward.router",
        "mlp.shared_expert_gate": "feed_forward.shared_gate",
        **{
            f"mlp.{hf}{part}_proj": f"feed_forward.{local}{part}"
            for part in ("gate", "up", "down")
            for hf, local in (
                ("", ""),
                ("shared_expert.", "shared."),
                ("experts.{e}.", "experts.{e}."),
            )
        },
    }
)
# The names in memory in transformers 5, which `save_original_format=False` also writes.
MOE_ALIASES = per_layer(
    "model.layers.{i}",
    "decoder",
    {
        "mlp.experts.gate_up_proj": (f"{_EXPERT}.gate.weight", f"{_EXPERT}.up.weight"),
        "mlp.experts.down_proj": f"{_EXPERT}.down.weight",
    },
)


def sparse_layers_hook(dense_width: int) -> Hook:
    """Return the hook for models in which only some of the layers have experts.

    `dense_width` is the default width of the feed-forward networks of the other layers.
    """

    def read(config: ConfigReader, tree: SpecTree) -> None:
        """Read which layers have experts."""
        step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
        width = config.get("intermediate_size", dense_width)
        layers = tree.get("decoder.layers")
        if isinstance(layers, dict):
            layers = [layers] * config.num_layers(24)
        for i, layer in enumerate(layers):
            if i in dense or (i + 1) % step:
                network = {**layer["feed_forward"]["expert"], "kind": "mlp", "d_ff": width}
                layers[i] = {**layer, "feed_forward": network}
        tree.set("decoder.layers", layers)

    def write(spec: TransformerSpec, config: dict[str, Any]) -> None:
        """Write which layers have experts, and the options of the experts."""
        networks = [layer.feed_forward for layer in spec.stacks[0].every_layer]
        experts = next((one for one in networks if isinstance(one, Experts)), None)
        dense = [i for i, one in enumerate(networks) if not isinstance(one, Experts)]
        if experts is None:
            raise SpecError("a model without experts")
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": dense}
        width = getattr(networks[dense[0]], "d_ff", None) if dense else dense_width
        config["intermediate_size"] = width
        for name, option in MOE_CONFIG.items():
            fields = option.paths[0].removeprefix(f"{EXPERTS}.").split(".")
            value = reduce(getattr, fields, experts)
            config[name] = next(
                (hf for hf, v in (option.values or {}).items() if v == value), value
            )

    return Hook(read, write)


def _read_shared_expert(config: ConfigReader, tree: SpecTree) -> None:
    """Read the window of each layer, and the shared expert, which has a gate."""
    slides, first = config.get("use_sliding_window", False), config.get("max_window_layers", 28)
    window = config.get("sliding_window", 4096)
    window = window if slides else None
    shared = {**tree.get(f"{EXPERTS}.expert"), "kind": "mlp"}
    shared["d_ff"] = config.get("shared_expert_intermediate_size", 5632)
    tree.set(f"{EXPERTS}.shared", shared)
    tree.set(f"{EXPERTS}.shared_gate", True)
    read_layer_types(config, tree, window, lambda i: slides and i % 2 == 0 and i < first)


def _write_shared_expert(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the window of each layer, and the width of the shared expert."""
    window = write_layer_types(spec, config)
    config |= {"use_sliding_window": window is not None, "sliding_window": window}
    for layer in spec.stacks[0].every_layer:
        if isinstance(layer.feed_forward, Experts) and layer.feed_forward.shared is not None:
            config["shared_expert_intermediate_size"] = layer.feed_forward.shared.d_ff


QWEN2_MOE = replace(
    QWEN2,
    model_type="qwen2_moe",
    architectures=decoder_classes("Qwen2Moe"),
    config={
        **{name: row for name, row in CONFIG.items() if name != "intermediate_size"},
        **MOE_CONFIG,
        "vocab_size": Option("vocab_size", 151_936),
        "hidden_size": Option("d_model", 2048),
        "num_hidden_layers": Option("decoder.num_layers", 24),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 16),
        "num_key_value_heads": kv_heads_option(missing=16, num_heads=16),
        "qkv_bias": Option("decoder.layers.mixer.bias", True),
    },
    fixed={**MOE_FIXED, "decoder.layers.mixer.output_bias": False},
    weights=MOE_WEIGHTS,
    aliases=MOE_ALIASES,
    peft_unsupported=("gate", "experts"),
    adapted_together=("gate_proj", "up_proj"),
    ignored="output_router_logits use_mrope",
    hooks=(ROPE_HOOK, Hook(_read_shared_expert, _write_shared_expert), sparse_layers_hook(5632)),
)
