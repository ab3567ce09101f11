"""BLOOM (Le Scao et al. 2022): ALiBi, and a LayerNorm after the token embeddings."""

from __future__ import annotations

from typing import Any

from trivium.interop.families.gpt2 import PRE_NORM
from trivium.interop.family import (
    QKV,
    Family,
    Hook,
    NameMap,
    Option,
    SpecTree,
    decoder_classes,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader

_ALIASES = {
    "n_embed": "hidden_size",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}


def _alias_reader(name: str, default: int) -> Any:
    """Return a function for `Option.default` that reads the alias `name`, or else `default`."""
    return lambda config: config.get(name, default)


def _read_aliases_and_d_ff(config: ConfigReader, tree: SpecTree) -> None:
    """Check that aliases have the same values as their options, and set `d_ff` to 4 * d_model."""
    for alias, name in _ALIASES.items():
        config.expect(alias, config.get(name, config.get(alias)))
    tree.set("decoder.layers.feed_forward.d_ff", 4 * tree.get("d_model"))
    config.expect("n_inner", 4 * tree.get("d_model"))


LAYER: NameMap = {
    "input_layernorm": "mixer_residual.{norm}",
    "self_attention.query_key_value": QKV,
    "self_attention.dense": "mixer.output",
    "post_attention_layernorm": "feed_forward_residual.{norm}",
    "mlp.dense_h_to_4h": "feed_forward.up",
    "mlp.dense_4h_to_h": "feed_forward.down",
}

BLOOM = Family(
    "bloom",
    architectures=decoder_classes("Bloom"),
    stacks=("decoder",),
    config={
        "vocab_size": Option("vocab_size", 250_880),
        "hidden_size": Option("d_model", _alias_reader("n_embed", 64)),
        "n_layer": Option("decoder.num_layers", _alias_reader("num_hidden_layers", 2)),
        "n_head": Option("decoder.layers.mixer.num_heads", _alias_reader("num_attention_heads", 8)),
        "layer_norm_epsilon": Option(("decoder.layers.norm.eps", "embedding.norm.eps"), 1e-5),
        "hidden_dropout": Option("decoder.dropout", 0.0),
        "attention_dropout": Option("decoder.dropout", write_only=True),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed={
        **PRE_NORM,
        "embedding.norm.kind": "layer",
        "decoder.layers.mixer.positions.kind": "alibi",
        "decoder.layers.feed_forward.activation": "gelu_tanh",
    },
    weights={
        "transformer.word_embeddings": "tokens",
        "transformer.word_embeddings_layernorm": "decoder.embedding.norm",
        **per_layer("transformer.h.{i}", "decoder", LAYER),
        "transformer.ln_f": "decoder.norm",
    },
    heads={"classifier": {"score": "classifier"}},
    base="transformer.",
    fused_per_head=True,
    expected={"apply_residual_connection_post_layernorm": False, "skip_bias_add_qkv": False},
    # Training options of the first releases; `slow_but_exact` only changes the order of sums.
    ignored="slow_but_exact offset_alibi seq_length skip_bias_add attention_softmax_in_fp32 "
    "bias_dropout_fusion masked_softmax_fusion unk_token_id",
    tied_aliases={"lm_head.weight": "transformer.word_embeddings.weight"},
    hooks=(Hook(_read_aliases_and_d_ff),),
)
