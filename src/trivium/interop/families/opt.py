"""OPT (Zhang et al. 2022)."""

from __future__ import annotations

from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.bart import LAYER
from trivium.interop.family import Family, Hook, Option, SpecTree, activation, hf_classes, per_layer
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec


def _read_embed_width(config: ConfigReader, tree: SpecTree) -> None:
    """Read the width of the token embeddings, which may be smaller than d_model (OPT-350M).

    `transformers` projects the hidden states to this width before any head, Trivium only before the
    LM head.
    """
    width = config.get("word_embed_proj_dim", tree.get("d_model"))
    if width == tree.get("d_model"):
        return
    if "lm" not in tree.heads:
        raise config.unsupported("word_embed_proj_dim", expected="hidden_size, or OPTForCausalLM")
    tree.set("embedding.factorised", {"width": width, "bias": False, "projected": "tokens"})


def _write_embed_width(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the width of the token embeddings, d_model unless they are projected."""
    if spec.embedding.factorised and [head.kind for head in spec.heads] != ["lm"]:
        raise SpecError("embedding.factorised beside another head than the LM head")
    config["word_embed_proj_dim"] = spec.d_embedding


def _check_final_norm(config: ConfigReader, tree: SpecTree) -> None:
    """Raise CheckpointError for a pre-norm decoder without a final norm."""
    if tree.get("decoder.layers.norm_placement") == "pre":
        config.expect("_remove_final_layer_norm", False)
    config.ignore("_remove_final_layer_norm")


def _read_norm_weights(config: ConfigReader, tree: SpecTree) -> None:
    """Read whether the norms have weights and biases."""
    if not config.get("layer_norm_elementwise_affine", True):
        tree.set("decoder.layers.norm.weight", False)
        tree.set("decoder.layers.norm.bias", False)


def _write_norm_weights(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write whether the norms have weights and biases."""
    norm = spec.stacks[0].every_layer[0].norm
    config["layer_norm_elementwise_affine"] = getattr(norm, "weight", None) is None


OPT = Family(
    "opt",
    architectures=hf_classes(
        "OPT", "ForCausalLM Model ForSequenceClassification ForQuestionAnswering"
    ),
    stacks=("decoder",),
    config={
        "vocab_size": "vocab_size",
        "max_position_embeddings": Option("embedding.positions.max_length", 2048),
        "hidden_size": "d_model",
        "num_hidden_layers": "decoder.num_layers",
        "num_attention_heads": "decoder.layers.mixer.num_heads",
        "ffn_dim": "decoder.layers.feed_forward.d_ff",
        "activation_function": activation("relu", "decoder.layers.feed_forward"),
        "do_layer_norm_before": Option(
            "decoder.layers.norm_placement", True, {True: "pre", False: "post"}
        ),
        "enable_bias": Option(
            ("decoder.layers.mixer.bias", "decoder.layers.feed_forward.bias"), True
        ),
        "dropout": Option("decoder.dropout", 0.1),
        "attention_dropout": Option("decoder.dropout", write_only=True),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed={
        "embedding.positions.kind": "learned",
        "embedding.positions.offset": 2,
        "embedding.positions.counted": "attended",
        "decoder.layers.norm.kind": "layer",
        "heads.classifier.pooling": "last",
        "heads.classifier.bias": False,
    },
    weights={
        "model.decoder.embed_tokens": "tokens",
        "model.decoder.embed_positions": "decoder.embedding.positions",
        "model.decoder.project_in": "decoder.embedding.project_tokens",
        **per_layer("model.decoder.layers.{i}", "decoder", LAYER),
        "model.decoder.final_layer_norm": "decoder.norm",
    },
    heads={
        "lm": {"lm_head": "", "model.decoder.project_out": "projection"},
        "classifier": {"score": "classifier"},
    },
    base="model.",
    expected={"learned_embeddings": True, "scale_embeddings": False},  # in Galactica's files
    ignored="activation_dropout layerdrop init_std classifier_dropout",
    tied_aliases={"lm_head.weight": "model.decoder.embed_tokens.weight"},
    hooks=(
        Hook(_read_embed_width, _write_embed_width),
        Hook(_read_norm_weights, _write_norm_weights),
        Hook(read=_check_final_norm),
    ),
)
