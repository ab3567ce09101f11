"""RoBERTa (Liu et al. 2019): BERT without sentence pairs, its positions counted after padding's.

Theirs counts positions over tokens that are not the padding token; here they count from the first
token, which is the same wherever padding stands last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trivium import spec
from trivium.errors import SpecError
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

_POOLER = "roberta.pooler.dense"
_CHOICE = "RobertaForMultipleChoice"

_HEAD_NAMES = {
    "mlm": {"dense.linear": "lm_head.dense", "dense.norm": "lm_head.layer_norm"},
    "pooler": {"linear": _POOLER},
    "classifier": {"dense.linear": "classifier.dense", "classifier": "classifier.out_proj"},
    "tagger": {"classifier": "classifier"},
    "span": {"classifier": "qa_outputs"},
}
_CHOICE_NAMES = {"classifier": {"dense.linear": _POOLER, "classifier": "classifier"}}


def _heads(choices: Choices) -> Mapping[str, Heads]:
    masked = spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True), tied=choices.tied)
    classifier = spec.ClassifierHead(num_labels=choices.num_labels, pooling="first", dense=TANH)
    return {
        "RobertaModel": (),
        "RobertaForMaskedLM": (masked,),
        "RobertaForSequenceClassification": (classifier,),
        _CHOICE: (classifier.replace(num_labels=1),),
        "RobertaForTokenClassification": (spec.TaggerHead(num_labels=choices.num_labels),),
        "RobertaForQuestionAnswering": (spec.SpanHead(),),
    }


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    two_labels(config, architecture, "RobertaForQuestionAnswering")
    choices = choices_in(config)
    heads = _heads(choices)[architecture]
    taken = architecture == _CHOICE
    heads = with_pooler(heads, f"{_POOLER}.weight", names, taken=taken)
    offset = config.take("pad_token_id", 1) + 1
    return read_body(config, heads, activation=choices.activation, offset=offset)


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    architecture, options = write_body(model, _heads)
    positions = model.embedding.positions
    if not isinstance(positions, spec.Learned) or positions.offset < 1:
        raise SpecError("RoBERTa has rows before that of the first position.")
    return architecture, {**options, "pad_token_id": positions.offset - 1}


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    names = _CHOICE_NAMES if architecture == _CHOICE else _HEAD_NAMES
    return [
        *embedding_rows("roberta.embeddings"),
        *layer_rows(model, BERT_LAYER, "roberta.encoder.layer.{}"),
        *head_rows(model, names),
        *vocabulary_rows(model, "lm_head.decoder", "lm_head.bias"),
    ]


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table, heads=True)


ROBERTA = Family(
    model_type="roberta",
    architectures=tuple(_heads(Choices("gelu", True, 2))),
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="roberta.",
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    ignored=(r".*\.position_ids",),
    renamed=OLD_NORMS,
)
