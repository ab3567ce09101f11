"""DeepSeek-V2 (DeepSeek-AI 2024a): latent attention, and experts with a shared network.

`aux_loss_alpha`, which the released configurations name and `transformers` does not read, is the
weight of the balance loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, read_rotary, write_rope
from trivium.interop.family import Hook, Option, SpecTree, Weights, activation, classes, in_layers
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import ModelSpec
from trivium.nn.feed_forwards.experts import Experts
from trivium.nn.feed_forwards.feed_forward import FeedForward
from trivium.nn.mixers.latent_attention import LatentAttention

MIXER, EXPERTS = "decoder.layers.mixer", "decoder.layers.feed_forward"
_EXPERT = "feed_forward.experts.{e}"
CLASSES = "ForCausalLM Model ForSequenceClassification"


def hook_for(shared: int, first: int, d_ff: int) -> Hook:
    """Return the hook of all that the tables cannot say.

    `shared`, `first` and `d_ff` are the numbers of a file that does not name them: shared experts,
    layers without experts, and the hidden units of these layers.
    """

    def read(config: ConfigReader, tree: SpecTree) -> None:
        read_rotary(config, tree)
        config.expect("num_key_value_heads", tree.get(f"{MIXER}.num_heads"))
        rank = config.get("q_lora_rank", None if "q_lora_rank" in config.named else 1536)
        tree.set(f"{MIXER}.query_rank", rank)
        expert = tree.get(f"{EXPERTS}.expert")
        hidden = config.require("n_shared_experts", shared) * expert["d_ff"]
        tree.set(f"{EXPERTS}.shared", {**expert, "d_ff": hidden})
        count = config.require("first_k_dense_replace", first)
        if count >= tree.get("decoder.num_layers"):
            expected = "a number less than num_hidden_layers"
            raise config.unsupported("first_k_dense_replace", expected=expected)
        dense = {
            **expert,
            "kind": "feed-forward",
            "d_ff": config.require("intermediate_size", d_ff),
        }
        layer = {**tree.get("decoder.layers"), "feed_forward": dense}
        tree.set("decoder.first_layers", [layer] * count)

    return Hook(read, _write)


def _write(spec: ModelSpec, config: dict[str, Any]) -> None:
    stack = spec.stacks[0]
    mixer, networks = stack.mixers[0], [layer.feed_forward for layer in stack.every_layer]
    experts = networks[-1]
    if not isinstance(mixer, LatentAttention):
        raise SpecError(f"{MIXER}.kind = {mixer.kind!r}")
    if not isinstance(experts, Experts) or experts.shared is None:
        raise SpecError(f"{EXPERTS}.shared = None")
    write_rope(mixer.positions, config)
    dense = [*itertools.takewhile(lambda each: isinstance(each, FeedForward), networks)]
    config |= {"num_key_value_heads": mixer.num_heads, "q_lora_rank": mixer.query_rank}
    config |= {"n_shared_experts": experts.shared.d_ff // experts.d_ff}
    config |= {"first_k_dense_replace": len(dense)}
    if dense:
        config["intermediate_size"] = dense[0].d_ff


def _read_groups(config: ConfigReader, tree: SpecTree) -> None:
    """Read the number of groups, which has no effect with the method "greedy"."""
    methods = {"greedy": False, "group_limited_greedy": True}
    if config.choose("topk_method", methods, "greedy"):
        tree.set(f"{EXPERTS}.num_groups", config.require("n_group"))
        tree.set(f"{EXPERTS}.num_chosen_groups", config.require("topk_group"))
    config.ignore("n_group", "topk_group")


def _write_groups(spec: ModelSpec, config: dict[str, Any]) -> None:
    experts = spec.stacks[0].every_layer[-1].feed_forward
    if isinstance(experts, Experts):
        is_limited = experts.num_groups > 1
        config["topk_method"] = "group_limited_greedy" if is_limited else "greedy"
        config |= {"n_group": experts.num_groups, "topk_group": experts.num_chosen_groups}


def _weights(spec: ModelSpec) -> Weights:
    """Only a compressed query has two matrices, and then the second has another name."""
    is_compressed = getattr(spec.stacks[0].mixers[0], "query_rank", None) is not None
    layer = {
        "input_layernorm": "mixer_residual.{norm}",
        "self_attn.q_a_proj": "mixer.query_down",
        "self_attn.q_a_layernorm": "mixer.query_norm",
        "self_attn.q_b_proj" if is_compressed else "self_attn.q_proj": "mixer.query",
        "self_attn.kv_a_proj_with_mqa": "mixer.key_value_down",
        "self_attn.kv_a_layernorm": "mixer.key_value_norm",
        "self_attn.kv_b_proj": "mixer.key_value_up",
        "self_attn.o_proj": "mixer.output",
        "post_attention_layernorm": "feed_forward_residual.{norm}",
        "mlp.gate": "feed_forward.router",
        "mlp.gate.e_score_correction_bias": "feed_forward.correction",
    }
    networks = {"": "", "shared_experts.": "shared.", "experts.{e}.": "experts.{e}."}
    for hf, local in networks.items():
        for part in ("gate", "up", "down"):
            layer[f"mlp.{hf}{part}_proj"] = f"feed_forward.{local}{part}"
    return {
        "model.embed_tokens": "tokens",
        **in_layers("model.layers.{i}", "decoder", layer),
        "model.norm": "decoder.norm",
    }


def config_with(defaults: Mapping[str, Any]) -> dict[str, Option]:
    """Return the options that both families have, with these defaults."""
    paths = {
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "decoder.num_layers",
        "num_attention_heads": f"{MIXER}.num_heads",
        "qk_nope_head_dim": f"{MIXER}.head_dim",
        "qk_rope_head_dim": f"{MIXER}.rotary_dim",
        "v_head_dim": f"{MIXER}.value_dim",
        "kv_lora_rank": f"{MIXER}.kv_rank",
        "moe_intermediate_size": f"{EXPERTS}.expert.d_ff",
        "n_routed_experts": f"{EXPERTS}.num_experts",
        "num_experts_per_tok": f"{EXPERTS}.num_chosen",
        "routed_scaling_factor": f"{EXPERTS}.scale",
        "aux_loss_alpha": f"{EXPERTS}.balance",
    }
    common = {
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "kv_lora_rank": 512,
        "aux_loss_alpha": 0.001,
    }
    defaults = {**common, **defaults}
    kept = ("rms_norm_eps", "attention_dropout", "tie_word_embeddings")
    return {
        **{name: Option(path, defaults.get(name)) for name, path in paths.items()},
        **{name: CONFIG[name] for name in kept},  # type: ignore[dict-item]
        "hidden_act": activation("silu", f"{EXPERTS}.expert"),
    }


DEEPSEEK_V2 = replace(
    LLAMA,
    model_type="deepseek_v2",
    adapted_together=("gate_proj", "up_proj"),
    architectures=classes("DeepseekV2", CLASSES),
    config=config_with(
        {
            "vocab_size": 102_400,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "moe_intermediate_size": 1407,
            "n_routed_experts": 64,
            "routed_scaling_factor": 1.0,
        }
    ),
    fixed={
        **{path: value for path, value in FIXED.items() if "feed_forward" not in path},
        f"{MIXER}.kind": "latent-attention",
        f"{MIXER}.positions.layout": "interleaved",
        f"{EXPERTS}.kind": "experts",
        f"{EXPERTS}.expert.gated": True,
        f"{EXPERTS}.expert.bias": False,
        f"{EXPERTS}.normalized": False,
    },
    weights=_weights,
    # As `transformers` 5 has them in memory, and writes them with `save_original_format=False`.
    also_read=in_layers(
        "model.layers.{i}",
        "decoder",
        {
            "mlp.experts.gate_up_proj": (f"{_EXPERT}.gate.weight", f"{_EXPERT}.up.weight"),
            "mlp.experts.down_proj": f"{_EXPERT}.down.weight",
        },
    ),
    # `transformers` never divides the weights of the chosen experts by their sum.
    expected={
        "attention_bias": False,
        "mlp_bias": False,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
    },
    ignored="head_dim qk_head_dim output_router_logits ep_size seq_aux auto_map",
    hooks=(hook_for(shared=2, first=0, d_ff=11_008), Hook(_read_groups, _write_groups)),
)
