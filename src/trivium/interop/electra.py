"""ELECTRA (Clark et al. 2020): a generator that fills masks, a discriminator that finds them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trivium import spec
from trivium.interop.config import ACTIVATIONS, Config
from trivium.interop.encoders import (
    BERT_LAYER,
    OLD_NORMS,
    Choices,
    Heads,
    choices_in,
    embedding_rows,
    head_rows,
    layer_rows,
    read_body,
    two_labels,
    write_body,
)
from trivium.interop.exactness import survives
from trivium.interop.family import Family, Row, rows

_CHOICE = "ElectraForMultipleChoice"
_GELU = spec.Dense(activation="gelu")

_HEAD_NAMES = {
    "mlm": {
        "dense.linear": "generator_predictions.dense",
        "dense.norm": "generator_predictions.LayerNorm",
    },
    "replaced-token": {
        "dense.linear": "discriminator_predictions.dense",
        "classifier": "discriminator_predictions.dense_prediction",
    },
    "classifier": {"dense.linear": "classifier.dense", "classifier": "classifier.out_proj"},
    "tagger": {"classifier": "classifier"},
    "span": {"classifier": "qa_outputs"},
}
_CHOICE_NAMES = {
    "classifier": {"dense.linear": "sequence_summary.summary", "classifier": "classifier"}
}


def _heads(choices: Choices) -> Mapping[str, Heads]:
    masked = spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True), tied=choices.tied)
    classifier = spec.ClassifierHead(num_labels=choices.num_labels, pooling="first", dense=_GELU)
    return {
        "ElectraModel": (),
        "ElectraForPreTraining": (spec.ReplacedTokenHead(activation=choices.activation),),
        "ElectraForMaskedLM": (masked,),
        "ElectraForSequenceClassification": (classifier,),
        _CHOICE: (classifier.replace(num_labels=1),),
        "ElectraForTokenClassification": (spec.TaggerHead(num_labels=choices.num_labels),),
        "ElectraForQuestionAnswering": (spec.SpanHead(),),
    }


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    two_labels(config, architecture, "ElectraForQuestionAnswering")
    choices = choices_in(config)
    heads = _heads(choices)[architecture]
    config.ignore("summary_last_dropout", "summary_first_dropout")
    if architecture == _CHOICE:
        config.only("summary_type", "first")
        config.only("summary_use_proj", True)
        config.only("summary_proj_to_labels", False)
        summary = spec.Dense(activation=config.choose("summary_activation", ACTIVATIONS, "gelu"))
        heads = (spec.ClassifierHead(num_labels=1, pooling="first", dense=summary),)
    else:
        config.ignore("summary_type", "summary_use_proj", "summary_activation")
        config.ignore("summary_proj_to_labels")
    narrow, width = config.take("embedding_size", 128), config.take("hidden_size")
    return read_body(
        config,
        heads,
        activation=choices.activation,
        factorised=None if narrow == width else spec.Factorised(width=narrow),
    )


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    architecture, options = write_body(model, _heads, pooled=False)
    return architecture, {**options, "embedding_size": model.d_embedding}


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    found = embedding_rows("electra.embeddings")
    if model.embedding.factorised:
        found += rows("encoder.embedding.widen_sum", "electra.embeddings_project")
    found += layer_rows(model, BERT_LAYER, "electra.encoder.layer.{}")
    found += head_rows(model, _CHOICE_NAMES if architecture == _CHOICE else _HEAD_NAMES)
    for head in model.heads:
        if isinstance(head, spec.MLMHead):
            found.append(Row("generator_lm_head.bias", ("heads.mlm.bias",)))
            if not head.tied:
                found.append(Row("generator_lm_head.weight", ("heads.mlm.weight",)))
    return found


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table, heads=True)


ELECTRA = Family(
    model_type="electra",
    architectures=tuple(_heads(Choices("gelu", True, 2))),
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="electra.",
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    ignored=(r".*\.position_ids",),
    renamed=OLD_NORMS,
)
