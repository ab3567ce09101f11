"""NomicBERT (Nussbaum et al. 2024): BERT with RoPE and gated feed-forward networks, no biases."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.bert import BERT, CONFIG, FIXED, weight_names
from trivium.interop.families.llama import CONFIG as LLAMA_CONFIG
from trivium.interop.families.llama import ROPE_HOOK, rope_options, rotary_fields
from trivium.interop.family import QKV, Hook, SpecTree, activation, hf_classes, per_layer
from trivium.interop.hf_config import ConfigReader

_MIXER, _FFN = "encoder.layers.mixer", "encoder.layers.feed_forward"


def _read_rotary(config: ConfigReader, tree: SpecTree) -> None:
    """Read the options of RoPE.

    The first releases have dynamic scaling beyond "max_trained_positions", with a factor.
    """
    rope, factor = rope_options(config), config.get("rotary_scaling_factor")
    trained = config.get("max_trained_positions", 2048)
    if factor is not None:
        rope |= {"rope_type": "dynamic", "factor": factor}
        config = config.with_option("max_position_embeddings", trained)
    for name, value in rotary_fields(config, rope, config.get("rope_theta", 1000.0)).items():
        tree.set(f"{_MIXER}.positions.{name}", value)


_LAYER = {"self_attn.q_proj": "mixer.query", "self_attn.k_proj": "mixer.key"}
_LAYER |= {"self_attn.v_proj": "mixer.value", "self_attn.o_proj": "mixer.output"}
_LAYER |= {"mlp.gate_proj": "feed_forward.gate", "mlp.up_proj": "feed_forward.up"}
_LAYER |= {"mlp.down_proj": "feed_forward.down"}
_LAYER |= {"post_attention_layernorm": "mixer_residual.{norm}"}
_LAYER |= {"post_mlp_layernorm": "feed_forward_residual.{norm}"}
# The names in the first releases.
_OLDER_LAYER = {"attn.out_proj": "mixer.output", "mlp.fc12": "feed_forward.gate"}
_OLDER_LAYER |= {"mlp.fc11": "feed_forward.up", "mlp.fc2": "feed_forward.down"}
_OLDER_LAYER |= {"norm1": "mixer_residual.{norm}", "norm2": "feed_forward_residual.{norm}"}
_OLDER = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
_OLDER |= {"n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps"}
_OLDER |= {"resid_pdrop": "hidden_dropout_prob", "attn_pdrop": "attention_probs_dropout_prob"}
_OLDER |= {"rotary_emb_base": "rope_theta"}
# Options of the first releases, each with the only value that is supported.
_EXPECTED = {"qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False}
_EXPECTED |= {"prenorm": False, "causal": False, "use_rms_norm": False, "parallel_block": False}
_EXPECTED |= {"rotary_emb_interleaved": False, "scale_attn_weights": True}
_MLM = BERT.heads["mlm"]
_NAMES = weight_names(_LAYER, "nomic_bert", "nomic_bert.layers.{i}")

NOMIC_BERT = replace(
    BERT,
    model_type="nomic_bert",
    architectures=hf_classes(
        "NomicBert", "Model ForMaskedLM ForSequenceClassification ForTokenClassification"
    ),
    config={
        **{name: row for name, row in CONFIG.items() if name != "max_position_embeddings"},
        "head_dim": replace(LLAMA_CONFIG["head_dim"], fields=f"{_MIXER}.head_dim"),
        "hidden_act": activation("silu", _FFN, "heads.mlm.dense"),
        "hidden_dropout_prob": replace(CONFIG["hidden_dropout_prob"], default=0.0),
    },
    fixed={
        **{path: value for path, value in FIXED.items() if path != "embedding.positions.kind"},
        f"{_MIXER}.bias": False,
        f"{_MIXER}.positions.kind": "rotary",
        f"{_FFN}.gated": True,
        f"{_FFN}.bias": False,
    },
    weights={hf: local for hf, local in _NAMES.items() if "position" not in hf},
    aliases={
        "nomic_bert.emb_ln": "encoder.embedding.norm",
        **per_layer("nomic_bert.encoder.layers.{i}", "encoder", {"attn.Wqkv": QKV, **_OLDER_LAYER}),
    },
    heads={
        "mlm": {name.replace("LayerNorm", "layer_norm"): to for name, to in _MLM.items()},
        "classifier": {"nomic_bert.pooler.dense": "dense.linear", "classifier": "classifier"},
    },
    base="nomic_bert.",
    optional_heads=(),
    expected=_EXPECTED
    | {"rotary_emb_scale_base": None, "rotary_emb_fraction": 1.0, "activation_function": "swiglu"},
    ignored="classifier_dropout n_positions embd_pdrop dense_seq_output fused_bias_fc "
    "fused_dropout_add_ln last_layer_subset pad_vocab_size_multiple parallel_block_tied_norm "
    "reorder_and_upcast_attn scale_attn_by_inverse_layer_idx summary_activation summary_type "
    "summary_first_dropout summary_proj_to_labels summary_use_proj use_flash_attn use_xentropy",
    older_names=_OLDER,
    tied_aliases={
        "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    hooks=(Hook(_read_rotary, ROPE_HOOK.write),),
    is_variant=True,
)
