"""Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every layer.

`router_aux_loss_coef` is always the coefficient of the load-balancing loss. In `transformers` the
training loss contains the load-balancing loss only if `output_router_logits` is set.
"""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.llama import FIXED, ROPE_HOOK, weight_names
from trivium.interop.families.mistral import MISTRAL, read_window, write_window
from trivium.interop.family import Hook, Option, SpecTree, activation, decoder_classes, per_layer
from trivium.interop.hf_config import ConfigReader

_EXPERT = "feed_forward.experts.{e}"


def _read_window_and_base(config: ConfigReader, tree: SpecTree) -> None:
    """Read the window and RoPE base; unlike in Mistral, the defaults are no window and 1e6."""
    read_window(config, tree, default=None)
    if "rope_theta" not in {*config.file_keys, *config.get("rope_parameters", {})}:
        tree.set("decoder.layers.mixer.positions.base", 1e6)


MIXTRAL = replace(
    MISTRAL,
    model_type="mixtral",
    adapted_together=("w1", "w3"),
    architectures=decoder_classes("Mixtral"),
    config={
        **MISTRAL.config,
        "intermediate_size": Option("decoder.layers.feed_forward.expert.d_ff", 14_336),
        "hidden_act": activation("silu", "decoder.layers.feed_forward.expert"),
        "num_local_experts": Option("decoder.layers.feed_forward.num_experts", 8),
        "num_experts_per_tok": Option("decoder.layers.feed_forward.top_k", 2),
        "router_aux_loss_coef": Option("decoder.layers.feed_forward.aux_loss_coef", 0.001),
        "rms_norm_eps": Option("decoder.layers.norm.eps", 1e-5),
    },
    fixed={
        **{path: value for path, value in FIXED.items() if "feed_forward" not in path},
        "decoder.layers.mixer.bias": False,
        "decoder.layers.feed_forward.kind": "experts",
        "decoder.layers.feed_forward.expert.gated": True,
        "decoder.layers.feed_forward.expert.bias": False,
    },
    weights=weight_names(
        {
            "block_sparse_moe.gate": "feed_forward.router",
            "block_sparse_moe.experts.{e}.w1": f"{_EXPERT}.gate",
            "block_sparse_moe.experts.{e}.w2": f"{_EXPERT}.down",
            "block_sparse_moe.experts.{e}.w3": f"{_EXPERT}.up",
        }
    ),
    # The names in memory in `transformers` 5, which `save_original_format=False` also writes.
    aliases=per_layer(
        "model.layers.{i}",
        "decoder",
        {
            "mlp.gate": "feed_forward.router",
            "mlp.experts.gate_up_proj": (f"{_EXPERT}.gate.weight", f"{_EXPERT}.up.weight"),
            "mlp.experts.down_proj": f"{_EXPERT}.down.weight",
        },
    ),
    expected={**MISTRAL.expected, "router_jitter_noise": 0.0},
    ignored="output_router_logits",
    hooks=(ROPE_HOOK, Hook(_read_window_and_base, write_window)),
    is_variant=False,
)
