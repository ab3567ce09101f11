"""BART (Lewis et al. 2019).

Marian reuses its mappings of options and weight names; OPT reuses the weight names of a layer.
"""

from __future__ import annotations

from typing import Any

from trivium.interop.family import Family, Hook, Option, SpecTree, activation, hf_classes, per_layer
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec

CONFIG = {
    "d_model": "d_model",
    "encoder_layers": "encoder.num_layers",
    "decoder_layers": "decoder.num_layers",
    "encoder_attention_heads": "encoder.layers.mixer.num_heads",
    "decoder_attention_heads": "decoder.layers.mixer.num_heads",
    "encoder_ffn_dim": "encoder.layers.feed_forward.d_ff",
    "decoder_ffn_dim": "decoder.layers.feed_forward.d_ff",
    "activation_function": activation("gelu", "stacks.layers.feed_forward"),
    "dropout": Option("stacks.dropout", 0.1),
    "max_position_embeddings": Option("embedding.positions.max_length", 1024),
}

FIXED = {"stacks.layers.norm.kind": "layer", "stacks.layers.norm_placement": "post"}

ALLOWED = {
    "is_decoder": False,
    "normalize_before": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
}

# Options that affect only training.
IGNORED = (
    "attention_dropout activation_dropout classifier_dropout classif_dropout encoder_layerdrop "
    "decoder_layerdrop init_std num_hidden_layers force_bos_token_to_be_generated save_step"
)


def _read_embed_scale(config: ConfigReader, tree: SpecTree) -> None:
    """Read the scale of token embeddings: sqrt(d_model) if `scale_embedding` is set, else 1."""
    scaled = config.require("scale_embedding", False)
    tree.set("embedding.scale", tree.get("d_model") ** 0.5 if scaled else 1.0)


def _write_shared_options(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write `scale_embedding`, and two options that have the same value for every model."""
    config["scale_embedding"] = spec.embedding.scale != 1.0
    config["is_encoder_decoder"] = True
    config["attention_dropout"] = 0.0


SCALE_HOOK = Hook(_read_embed_scale, _write_shared_options)


def _read_lm_bias(config: ConfigReader, tree: SpecTree) -> None:
    """Give the LM head a bias if the file has a nonzero `final_logits_bias`."""
    tree.set("heads.lm.bias", "final_logits_bias" in config.weights)


LAYER = {
    "self_attn.q_proj": "mixer.query",
    "self_attn.k_proj": "mixer.key",
    "self_attn.v_proj": "mixer.value",
    "self_attn.out_proj": "mixer.output",
    "self_attn_layer_norm": "mixer_residual.{norm}",
    "fc1": "feed_forward.up",
    "fc2": "feed_forward.down",
    "final_layer_norm": "feed_forward_residual.{norm}",
}
"""The names of a layer's weights in families with fairseq's names: BART, Marian and OPT."""

_CROSS = {
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.output",
    "encoder_attn_layer_norm": "cross_residual.{norm}",
}

LAYERS = {
    **per_layer("model.encoder.layers.{i}", "encoder", LAYER),
    **per_layer("model.decoder.layers.{i}", "decoder", {**LAYER, **_CROSS}),
}


BART = Family(
    "bart",
    architectures=hf_classes(
        "Bart", "ForConditionalGeneration Model ForSequenceClassification ForQuestionAnswering"
    ),
    stacks=("encoder", "decoder"),
    config={"vocab_size": "vocab_size", **CONFIG},
    fixed={
        **FIXED,
        "embedding.positions.kind": "learned",
        "embedding.positions.offset": 2,
        "embedding.norm.kind": "layer",
        "heads.lm.tied": True,
        "heads.classifier.pooling": "last",
        "heads.classifier.dense.activation": "tanh",
    },
    weights={
        "model.shared": "tokens",
        "model.encoder.embed_positions": "encoder.embedding.positions",
        "model.encoder.layernorm_embedding": "encoder.embedding.norm",
        "model.decoder.embed_positions": "decoder.embedding.positions",
        "model.decoder.layernorm_embedding": "decoder.embedding.norm",
        **LAYERS,
    },
    heads={
        "lm": {"final_logits_bias": "bias"},
        "classifier": {
            "classification_head.dense": "dense.linear",
            "classification_head.out_proj": "classifier",
        },
    },
    base="model.",
    expected={
        **ALLOWED,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "extra_pos_embeddings": 2,
        "tie_word_embeddings": True,
    },
    ignored=IGNORED,
    num_labels=3,
    tied_aliases={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    hf_shapes=lambda spec: {"final_logits_bias": (1, spec.vocab_size)},
    buffers=(r"(model\.)?(encoder|decoder)\.version",),
    must_be_zero=("final_logits_bias",),
    hooks=(SCALE_HOOK, Hook(_read_lm_bias)),
)
