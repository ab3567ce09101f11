"""Qwen1.5-MoE and Qwen2-MoE (Yang et al. 2024): experts, and a shared expert with a gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import CONFIG, ROPE_HOOK, weight_names
from trivium.interop.families.mixtral import MIXTRAL
from trivium.interop.families.qwen2 import QWEN2, read_layer_types, write_layer_types
from trivium.interop.family import (
    Hook,
    Option,
    SpecTree,
    activation,
    decoder_classes,
    kv_heads_option,
)
from trivium.interop.hf_config import ConfigReader
from trivium.interop.sparse_layers import EXPERTS, SparseLayers, network_names
from trivium.models.transformer import TransformerSpec
from trivium.nn.feed_forwards.experts import Experts

MOE_CONFIG = {
    "hidden_act": activation("silu", f"{EXPERTS}.expert"),
    "num_experts": Option(f"{EXPERTS}.num_experts", 60),
    "num_experts_per_tok": Option(f"{EXPERTS}.top_k", 4),
    "moe_intermediate_size": Option(f"{EXPERTS}.expert.d_ff", 1408),
    "norm_topk_prob": Option(f"{EXPERTS}.normalized", False),
    "router_aux_loss_coef": Option(f"{EXPERTS}.aux_loss_coef", 0.001),
}
MOE_FIXED = {
    path: value for path, value in MIXTRAL.fixed.items() if path != "decoder.layers.mixer.bias"
}
_NETWORKS = {"": "", "shared_expert.": "shared.", "experts.{e}.": "experts.{e}."}


def _read_shared_expert(config: ConfigReader, tree: SpecTree) -> None:
    """Read the window of each layer, and the shared expert, which has a gate."""
    slides, first = config.get("use_sliding_window", False), config.get("max_window_layers", 28)
    window = config.get("sliding_window", None if "sliding_window" in config.file_keys else 4096)
    shared = {**tree.get(f"{EXPERTS}.expert"), "kind": "mlp"}
    shared["d_ff"] = config.get("shared_expert_intermediate_size", 5632)
    tree.set(f"{EXPERTS}.shared", shared)
    tree.set(f"{EXPERTS}.shared_gate", True)
    read_layer_types(
        config, tree, window if slides else None, lambda i: slides and i % 2 == 0 and i < first
    )


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
    weights=weight_names(
        {
            "mlp.gate": "feed_forward.router",
            "mlp.shared_expert_gate": "feed_forward.shared_gate",
            **network_names(_NETWORKS),
        }
    ),
    aliases=MIXTRAL.aliases,
    peft_unsupported=("gate", "experts"),
    adapted_together=("gate_proj", "up_proj"),
    ignored="output_router_logits use_mrope",
    hooks=(
        ROPE_HOOK,
        Hook(_read_shared_expert, _write_shared_expert),
        SparseLayers(MOE_CONFIG, 5632).hook,
    ),
    is_variant=True,
)
