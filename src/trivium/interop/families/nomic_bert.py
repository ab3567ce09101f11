"""NomicBERT (Nussbaum et al. 2024): BERT with RoPE and gated feed-forward networks, no biases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.bert import BERT, FIXED
from trivium.interop.families.llama import rope_options, rotary_fields, write_rope
from trivium.interop.family import (
    QKV,
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    attention_of,
    head_dim,
    hf_classes,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec

_MIXER, _FFN = "encoder.layers.mixer", "encoder.layers.feed_forward"
_BASE = 1000.0


def _older(name: str, default: Any) -> Any:
    """Return a function for `Option.default` that reads the name of the first releases."""
    return lambda config: config.get(name, default)


def _read_rotary(config: ConfigReader, tree: SpecTree) -> None:
    """Read the options of RoPE, and the activation, which the first releases call "swiglu"."""
    base = config.get("rope_theta", config.get("rotary_emb_base", _BASE))
    for name, value in rotary_fields(config, rope_options(config), base).items():
        tree.set(f"{_MIXER}.positions.{name}", value)
    config.expect("activation_function", "swiglu")


def _write_rotary(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the options of RoPE."""
    write_rope(attention_of(spec).positions, config)


_LAYER: NameMap = {
    "self_attn.q_proj": "mixer.query",
    "self_attn.k_proj": "mixer.key",
    "self_attn.v_proj": "mixer.value",
    "self_attn.o_proj": "mixer.output",
    "post_attention_layernorm": "mixer_residual.{norm}",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
    "post_mlp_layernorm": "feed_forward_residual.{norm}",
}
_PUBLISHED_LAYER: NameMap = {
    "attn.Wqkv": QKV,
    "attn.out_proj": "mixer.output",
    "norm1": "mixer_residual.{norm}",
    "mlp.fc11": "feed_forward.up",
    "mlp.fc12": "feed_forward.gate",
    "mlp.fc2": "feed_forward.down",
    "norm2": "feed_forward_residual.{norm}",
}

NOMIC_BERT = replace(
    BERT,
    model_type="nomic_bert",
    architectures=hf_classes(
        "NomicBert", "Model ForMaskedLM ForSequenceClassification ForTokenClassification"
    ),
    config={
        "vocab_size": Option("vocab_size", 30_528),
        "hidden_size": Option("d_model", _older("n_embd", 768)),
        "num_hidden_layers": Option("encoder.num_layers", _older("n_layer", 12)),
        "num_attention_heads": Option(f"{_MIXER}.num_heads", _older("n_head", 12)),
        "head_dim": Option(
            f"{_MIXER}.head_dim",
            lambda config: head_dim(
                config.get("hidden_size", config.get("n_embd", 768)),
                config.get("num_attention_heads", config.get("n_head", 12)),
            ),
        ),
        "intermediate_size": Option(f"{_FFN}.d_ff", _older("n_inner", 3072)),
        "hidden_act": activation("silu", _FFN, "heads.mlm.dense"),
        "type_vocab_size": Option("embedding.num_token_types", 2, at_least=1),
        "layer_norm_eps": Option(
            ("encoder.layers.norm.eps", "embedding.norm.eps"), _older("layer_norm_epsilon", 1e-12)
        ),
        "hidden_dropout_prob": Option("encoder.dropout", 0.0),
        "attention_probs_dropout_prob": Option("encoder.dropout", write_only=True),
        "tie_word_embeddings": Option("heads.mlm.tied", True),
    },
    fixed={
        **{path: value for path, value in FIXED.items() if path != "embedding.positions.kind"},
        f"{_MIXER}.bias": False,
        f"{_MIXER}.positions.kind": "rotary",
        f"{_FFN}.gated": True,
        f"{_FFN}.bias": False,
    },
    weights={
        "nomic_bert.embeddings.word_embeddings": "tokens",
        "nomic_bert.embeddings.token_type_embeddings": "encoder.embedding.token_types",
        "nomic_bert.embeddings.LayerNorm": "encoder.embedding.norm",
        **per_layer("nomic_bert.layers.{i}", "encoder", _LAYER),
    },
    aliases={
        "nomic_bert.emb_ln": "encoder.embedding.norm",
        **per_layer("nomic_bert.encoder.layers.{i}", "encoder", _PUBLISHED_LAYER),
    },
    heads={
        "mlm": {
            "cls.predictions.transform.dense": "dense.linear",
            "cls.predictions.transform.layer_norm": "dense.norm",
            "cls.predictions.bias": "bias",
            "cls.predictions.decoder": "",
        },
        "classifier": {"nomic_bert.pooler.dense": "dense.linear", "classifier": "classifier"},
    },
    base="nomic_bert.",
    optional_heads=(),
    # Options of the first releases, each with the only value that is supported.
    expected={
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm"), False),
        **dict.fromkeys(("causal", "use_rms_norm", "rotary_emb_interleaved"), False),
        **dict.fromkeys(("rotary_scaling_factor", "rotary_emb_scale_base")),
        "rotary_emb_fraction": 1.0,
        "parallel_block": False,
        "scale_attn_weights": True,
    },
    ignored="classifier_dropout max_position_embeddings n_positions max_trained_positions "
    "attn_pdrop resid_pdrop embd_pdrop dense_seq_output fused_bias_fc fused_dropout_add_ln "
    "last_layer_subset pad_vocab_size_multiple parallel_block_tied_norm reorder_and_upcast_attn "
    "scale_attn_by_inverse_layer_idx summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj use_flash_attn use_xentropy auto_map",
    tied_aliases={
        "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    hooks=(Hook(_read_rotary, _write_rotary),),
    is_variant=True,
)
