"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from typing import Any

from trivium.interop.family import (
    QKV,
    Family,
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

CONFIG = {
    "vocab_size": "vocab_size",
    "n_embd": "d_model",
    "n_layer": "decoder.num_layers",
    "n_head": "decoder.layers.mixer.num_heads",
    "layer_norm_epsilon": Option("decoder.layers.norm.eps", 1e-5),
    "resid_pdrop": Option("decoder.dropout", 0.1),
    "embd_pdrop": Option("decoder.dropout", write_only=True),
    "attn_pdrop": Option("decoder.dropout", write_only=True),
    "tie_word_embeddings": Option("heads.lm.tied", True),
}
"""The options that GPT-1 and GPT-2 share."""

_CLASSIFIER = {"heads.classifier.pooling": "last", "heads.classifier.bias": False}
FIXED = {"embedding.positions.kind": "learned", "decoder.layers.norm.kind": "layer", **_CLASSIFIER}

PRE_NORM = {
    "decoder.layers.norm.kind": "layer",
    "decoder.layers.norm_placement": "pre",
    "initialization": {"kind": "normal", "residual_init": "scaled"},
    **_CLASSIFIER,
}
"""The fields that have the same value in GPT-2, GPT-Neo, GPT-J, BLOOM and Falcon."""

LAYER: NameMap = {
    "ln_1": "mixer_residual.{norm}",
    "attn.c_attn": QKV,
    "attn.c_proj": "mixer.output",
    "ln_2": "feed_forward_residual.{norm}",
    "mlp.c_fc": "feed_forward.up",
    "mlp.c_proj": "feed_forward.down",
}

# Only the classes with two heads read the summary options, and these classes are refused.
IGNORED = (
    "n_ctx summary_type summary_use_proj summary_activation summary_proj_to_labels "
    "summary_first_dropout"
)

_LAYER_SCALES = "scale_attn_by_inverse_layer_idx"


def _read_layer_scales(config: ConfigReader, tree: SpecTree) -> None:
    """Divide the scores of layer i (from 1) by i, if the option is set (Mistral of Stanford)."""
    if config.get(_LAYER_SCALES, False):
        mixer = {**tree.get("decoder.layers.mixer"), "kind": "attention"}
        scale = mixer["scale"] or head_dim(tree.get("d_model"), mixer["num_heads"]) ** -0.5
        layers = range(1, 1 + config.require("n_layer"))
        tree.repeat_per_mixer("decoder", [{**mixer, "scale": scale / i} for i in layers])


def _write_layer_scales(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write whether the scores of the second layer are scaled otherwise than those of the first."""
    first = attention_of(spec).score_scale
    config[_LAYER_SCALES] = any(each.score_scale != first for each in spec.stacks[0].attentions)


GPT2 = Family(
    "gpt2",
    architectures=hf_classes(
        "GPT2",
        "LMHeadModel Model ForSequenceClassification ForTokenClassification ForQuestionAnswering",
    ),
    stacks=("decoder",),
    config={
        **CONFIG,
        "n_positions": Option("embedding.positions.max_length", 1024),
        "n_inner": Option(
            "decoder.layers.feed_forward.d_ff", lambda config: 4 * config.require("n_embd")
        ),
        "activation_function": activation("gelu_new", "decoder.layers.feed_forward"),
        "scale_attn_weights": Option("decoder.layers.mixer.scale", True, {True: None, False: 1.0}),
    },
    fixed={**FIXED, **PRE_NORM},
    weights={
        "transformer.wte": "tokens",
        "transformer.wpe": "decoder.embedding.positions",
        **per_layer("transformer.h.{i}", "decoder", LAYER),
        "transformer.ln_f": "decoder.norm",
    },
    heads={"classifier": {"score": "classifier"}},
    base="transformer.",
    expected={"add_cross_attention": False},
    # Upcasting changes only the precision of the attention scores.
    ignored=f"{IGNORED} reorder_and_upcast_attn classifier_dropout hidden_dropout",
    transposed=("c_attn", "c_proj", "c_fc"),
    tied_aliases={"lm_head.weight": "transformer.wte.weight"},
    buffers=(r".*\.attn\.(masked_)?bias",),
    hooks=(Hook(_read_layer_scales, _write_layer_scales),),
)
