"""DeepSeek-V2 (DeepSeek-AI 2024a): multi-head latent attention, dense layers before MoE layers.

`aux_loss_alpha` is the coefficient of the load-balancing loss. The released configs set it, but
`transformers` does not read it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.llama import CONFIG, read_rotary, weight_names, write_rope
from trivium.interop.families.mixtral import MIXTRAL
from trivium.interop.family import Hook, NameMap, Option, SpecTree, activation, hf_classes
from trivium.interop.hf_config import ConfigReader
from trivium.interop.sparse_layers import network_names
from trivium.models.transformer import TransformerSpec
from trivium.nn.feed_forwards.experts import Experts
from trivium.nn.mixers.latent_attention import LatentAttention

_MIXER, _EXPERTS = "decoder.layers.mixer", "decoder.layers.feed_forward"
_NETWORKS = {"": "", "shared_experts.": "shared.", "experts.{e}.": "experts.{e}."}
CLASSES = "ForCausalLM Model ForSequenceClassification"


def _read_mla_and_moe(config: ConfigReader, tree: SpecTree) -> None:
    """Read the options of RoPE, query rank, shared experts, and dense layers before MoE layers."""
    read_rotary(config, tree)
    config.expect("num_key_value_heads", tree.get(f"{_MIXER}.num_heads"))
    rank = config.get("q_lora_rank", None if "q_lora_rank" in config.file_keys else 1536)
    tree.set(f"{_MIXER}.query_rank", rank)
    expert = {**tree.get(f"{_EXPERTS}.expert"), "kind": "mlp"}
    shared = tree.get(f"{_EXPERTS}.shared.d_ff") * expert["d_ff"]  # one network for all
    tree.set(f"{_EXPERTS}.shared", {**expert, "d_ff": shared})
    dense = {**expert, "d_ff": config.require("intermediate_size")}
    count = min(config.require("first_k_dense_replace"), tree.get("decoder.num_layers"))
    layer = {**tree.get("decoder.layers"), "feed_forward": dense}
    tree.set("decoder.first_layers", [layer] * count)


def _write_mla_and_moe(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the options of RoPE, query rank, shared experts, and the number of dense layers."""
    mixer, networks = spec.stacks[0].mixers[0], [x.feed_forward for x in spec.stacks[0].every_layer]
    experts = networks[-1]
    if not (isinstance(mixer, LatentAttention) and isinstance(experts, Experts) and experts.shared):
        raise SpecError("a model without latent attention or shared experts")
    write_rope(mixer.positions, config)
    config["q_lora_rank"] = mixer.query_rank
    config["n_shared_experts"] = experts.shared.d_ff // experts.d_ff
    config["first_k_dense_replace"] = [isinstance(x, Experts) for x in networks].index(True)
    config["intermediate_size"] = getattr(networks[0], "d_ff", None)


def _read_routing(config: ConfigReader, tree: SpecTree) -> None:
    """Read how experts are chosen (`topk_method`); "greedy" means a single group of experts."""
    config.expect("norm_topk_prob", False)  # `transformers` does not read it
    if config.translate("topk_method", {"greedy": True, "group_limited_greedy": False}, "greedy"):
        tree.set(f"{_EXPERTS}.num_groups", 1)
        tree.set(f"{_EXPERTS}.top_k_groups", 1)


def _write_routing(_: TransformerSpec, config: dict[str, Any]) -> None:
    """Write how experts are chosen (`topk_method`): "greedy" if there is one group of experts."""
    config["topk_method"] = "greedy" if config["n_group"] == 1 else "group_limited_greedy"


def _default_num_groups(config: ConfigReader) -> int | None:
    """Return the default number of expert groups, 1; None (required) for group-limited routing."""
    return None if config.get("topk_method") == "group_limited_greedy" else 1


def _weight_names(spec: TransformerSpec) -> NameMap:
    """Return the mapping of weight names for a spec.

    If the queries have a low-rank projection, `q_b_proj` is used instead of `q_proj`.
    """
    compressed = getattr(spec.stacks[0].mixers[0], "query_rank", None) is not None
    query = "q_b_proj" if compressed else "q_proj"
    return {hf.replace("q_proj", query): local for hf, local in _WEIGHTS.items()}


_WEIGHTS = weight_names(
    {
        "self_attn.q_a_proj": "mixer.query_down",
        "self_attn.q_a_layernorm": "mixer.query_norm",
        "self_attn.kv_a_proj_with_mqa": "mixer.key_value_down",
        "self_attn.kv_a_layernorm": "mixer.key_value_norm",
        "self_attn.kv_b_proj": "mixer.key_value_up",
        "mlp.gate": "feed_forward.router",
        "mlp.gate.e_score_correction_bias": "feed_forward.correction",
        **network_names(_NETWORKS),
    }
)
_KEPT = "vocab_size hidden_size num_hidden_layers num_attention_heads rms_norm_eps"

DEEPSEEK_V2 = replace(
    MIXTRAL,
    model_type="deepseek_v2",
    adapted_together=("gate_proj", "up_proj"),
    architectures=hf_classes("DeepseekV2", CLASSES),
    config={
        **{name: CONFIG[name] for name in f"{_KEPT} attention_dropout tie_word_embeddings".split()},
        "hidden_act": activation("silu", f"{_EXPERTS}.expert"),
        "num_key_value_heads": Option(f"{_MIXER}.num_heads", write_only=True),
        "qk_nope_head_dim": f"{_MIXER}.head_dim",
        "qk_rope_head_dim": f"{_MIXER}.rotary_dim",
        "v_head_dim": f"{_MIXER}.value_dim",
        "kv_lora_rank": f"{_MIXER}.kv_rank",
        "moe_intermediate_size": f"{_EXPERTS}.expert.d_ff",
        "n_routed_experts": f"{_EXPERTS}.num_experts",
        "n_shared_experts": f"{_EXPERTS}.shared.d_ff",
        "num_experts_per_tok": f"{_EXPERTS}.top_k",
        "routed_scaling_factor": f"{_EXPERTS}.scale",
        "n_group": Option(f"{_EXPERTS}.num_groups", _default_num_groups),
        "topk_group": Option(f"{_EXPERTS}.top_k_groups", _default_num_groups),
        "aux_loss_alpha": Option(f"{_EXPERTS}.aux_loss_coef", 0.001),
    },
    fixed={
        **{path: value for path, value in MIXTRAL.fixed.items() if path != f"{_MIXER}.bias"},
        f"{_MIXER}.kind": "latent-attention",
        f"{_MIXER}.positions.layout": "interleaved",
        f"{_EXPERTS}.normalized": False,
    },
    weights=_weight_names,
    expected={"attention_bias": False, "mlp_bias": False, "scoring_func": "softmax"},
    ignored="head_dim qk_head_dim output_router_logits moe_layer_freq ep_size seq_aux",
    hooks=(Hook(_read_mla_and_moe, _write_mla_and_moe), Hook(_read_routing, _write_routing)),
)
