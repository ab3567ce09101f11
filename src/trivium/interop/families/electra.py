"""ELECTRA (Clark et al. 2020): an MLM generator and a replaced-token-detection discriminator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.bert import ALLOWED, BERT, CONFIG, FIXED, LAYER, weight_names
from trivium.interop.family import (
    MULTIPLE_CHOICE,
    Architecture,
    Hook,
    SpecTree,
    activation,
    hf_classes,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec


def _read_embed_width(config: ConfigReader, tree: SpecTree) -> None:
    """Read the width of the token embeddings, which are projected if it differs from d_model."""
    width = config.require("embedding_size", 128)
    if width != tree.get("d_model"):
        tree.set("embedding.factorised.width", width)


def _write_embed_width(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the width of the token embeddings, d_model unless they are projected."""
    config["embedding_size"] = spec.d_embedding


_SUMMARY = {"sequence_summary.summary": "dense.linear", "classifier": "classifier"}

ELECTRA = replace(
    BERT,
    model_type="electra",
    architectures={
        "ElectraModel": Architecture(),
        "ElectraForPreTraining": Architecture(("replaced-token",)),
        **hf_classes("Electra", "ForMaskedLM ForSequenceClassification"),
        "ElectraForMultipleChoice": replace(MULTIPLE_CHOICE, weights={"classifier": _SUMMARY}),
        **hf_classes("Electra", "ForTokenClassification ForQuestionAnswering"),
    },
    config={
        **CONFIG,
        "hidden_act": activation("gelu", "encoder.layers.feed_forward", "heads.replaced-token"),
    },
    fixed={
        **FIXED,
        "heads.mlm.dense.activation": "gelu",
        "heads.classifier.dense.activation": "gelu",
    },
    weights={
        **weight_names(LAYER, "electra", "electra.encoder.layer.{i}"),
        "electra.embeddings_project": "encoder.embedding.project_sum",
    },
    heads={
        "mlm": {
            "generator_predictions.dense": "dense.linear",
            "generator_predictions.LayerNorm": "dense.norm",
            "generator_lm_head": "",
        },
        "replaced-token": {
            "discriminator_predictions.dense": "dense.linear",
            "discriminator_predictions.dense_prediction": "classifier",
        },
        "classifier": {"classifier.dense": "dense.linear", "classifier.out_proj": "classifier"},
    },
    base="electra.",
    optional_heads=(),
    expected={
        **ALLOWED,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_proj_to_labels": False,
    },
    ignored="classifier_dropout summary_last_dropout summary_first_dropout",
    tied_aliases={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    hooks=(Hook(_read_embed_width, _write_embed_width),),
    is_variant=True,
)
