"""BERT (Devlin et al. 2018)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trivium import spec
from trivium.interop.config import Config
from trivium.interop.encoders import (
    BERT_LAYER,
    OLD_NORMS,
    TANH,
    Choices,
    Heads,
    choices_in,
    embedding_rows,
    head_rows,
    layer_rows,
    read_body,
    two_labels,
    vocabulary_rows,
    with_pooler,
    write_body,
)
from trivium.interop.exactness import survives
from trivium.interop.family import Family, Row

_POOLER = "bert.pooler.dense"

_HEAD_NAMES = {
    "mlm": {
        "dense.linear": "cls.predictions.transform.dense",
        "dense.norm": "cls.predictions.transform.LayerNorm",
    },
    "nsp": {"pooler.linear": _POOLER, "classifier": "cls.seq_relationship"},
    "pooler": {"linear": _POOLER},
    "classifier": {"dense.linear": _POOLER, "classifier": "classifier"},
    "tagger": {"classifier": "classifier"},
    "span": {"classifier": "qa_outputs"},
}


def _heads(choices: Choices) -> Mapping[str, Heads]:
    masked = spec.MLMHead(
        dense=spec.Dense(activation=choices.activation, norm=True), tied=choices.tied
    )
    classifier = spec.ClassifierHead(num_labels=choices.num_labels, pooling="first", dense=TANH)
    return {
        "BertModel": (),
        "BertForMaskedLM": (masked,),
        "BertForPreTraining": (masked, spec.NSPHead()),
        "BertForNextSentencePrediction": (spec.NSPHead(),),
        "BertForSequenceClassification": (classifier,),
        "BertForMultipleChoice": (classifier.replace(num_labels=1),),
        "BertForTokenClassification": (spec.TaggerHead(num_labels=choices.num_labels),),
        "BertForQuestionAnswering": (spec.SpanHead(),),
    }


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    # Settings of the pooler in files converted from TensorFlow, which nothing reads.
    config.ignore("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_type")
    config.ignore("pooler_num_fc_layers", "pooler_size_per_head")
    two_labels(config, architecture, "BertForQuestionAnswering")
    if architecture in ("BertModel", "BertForMaskedLM"):
        architecture = _pretrained(architecture, names)
    choices = choices_in(config)
    heads = _heads(choices)[architecture]
    taken = any(head.kind in ("nsp", "classifier") for head in heads)
    heads = with_pooler(heads, f"{_POOLER}.weight", names, taken=taken)
    return read_body(config, heads, activation=choices.activation)


def _pretrained(architecture: str, names: Collection[str]) -> str:
    """The class of a file that holds more heads of pretraining than its config's class has."""
    if "cls.predictions.transform.dense.weight" not in names:
        return architecture
    pairs = "cls.seq_relationship.weight" in names
    return "BertForPreTraining" if pairs else "BertForMaskedLM"


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    return write_body(model, _heads)


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    return [
        *embedding_rows("bert.embeddings"),
        *layer_rows(model, BERT_LAYER, "bert.encoder.layer.{}"),
        *head_rows(model, _HEAD_NAMES),
        *vocabulary_rows(model, "cls.predictions.decoder", "cls.predictions.bias"),
    ]


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table, heads=True)


BERT = Family(
    model_type="bert",
    architectures=tuple(_heads(Choices("gelu", True, 2))),
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="bert.",
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=(r".*\.position_ids",),
    renamed=OLD_NORMS,
)
