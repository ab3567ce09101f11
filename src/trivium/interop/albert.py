"""ALBERT (Lan et al. 2019): layers that share weights, and narrow token vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trivium import spec
from trivium.errors import CheckpointError
from trivium.interop.config import Config
from trivium.interop.encoders import (
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
from trivium.interop.family import Family, Row, rows

_POOLER = "albert.pooler"

_LAYER = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention_residual.norm": "attention.LayerNorm",
    "feed_forward.up": "ffn",
    "feed_forward.down": "ffn_output",
    "feed_forward_residual.norm": "full_layer_layer_norm",
}

_HEAD_NAMES = {
    "mlm": {"dense.linear": "predictions.dense", "dense.norm": "predictions.LayerNorm"},
    "nsp": {"pooler.linear": _POOLER, "classifier": "sop_classifier.classifier"},
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
        "AlbertModel": (),
        "AlbertForMaskedLM": (masked,),
        "AlbertForPreTraining": (masked, spec.NSPHead()),
        "AlbertForSequenceClassification": (classifier,),
        "AlbertForMultipleChoice": (classifier.replace(num_labels=1),),
        "AlbertForTokenClassification": (spec.TaggerHead(num_labels=choices.num_labels),),
        "AlbertForQuestionAnswering": (spec.SpanHead(),),
    }


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    # The first releases name memory blocks and gaps that no released model has.
    config.only("num_memory_blocks", 0)
    config.only("gap_size", 0)
    config.only("net_structure_type", 0)
    config.only("down_scale_factor", 1)
    config.only("inner_group_num", 1)
    config.ignore("classifier_dropout_prob")
    two_labels(config, architecture, "AlbertForQuestionAnswering", "AlbertForPreTraining")
    if architecture == "AlbertForMaskedLM" and "sop_classifier.classifier.weight" in names:
        architecture = "AlbertForPreTraining"
    choices = choices_in(config, activation="gelu_new")
    heads = _heads(choices)[architecture]
    taken = any(head.kind in ("nsp", "classifier") for head in heads)
    heads = with_pooler(heads, f"{_POOLER}.weight", names, taken=taken)
    layers, groups = config.take("num_hidden_layers"), config.take("num_hidden_groups", 1)
    _check_groups(layers, groups)
    return read_body(
        config,
        heads,
        activation=choices.activation,
        dropout=0.0,
        factorised=spec.Factorised(width=config.take("embedding_size", 128)),
        num_distinct=groups,
    )


def _check_groups(layers: int, groups: int) -> None:
    """Refuse groups that theirs, dividing floats, bounds at other layers than whole numbers do."""
    if not 0 < groups <= layers or any(
        int(i / (layers / groups)) != i * groups // layers for i in range(layers)
    ):
        raise CheckpointError(
            f'config.json: "num_hidden_groups" is {groups}, which is not supported for albert '
            f"with {layers} layers; supported: 1 and what divides the layers."
        )


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    architecture, options = write_body(model, _heads)
    assert model.encoder is not None
    return architecture, {
        **options,
        "embedding_size": model.d_embedding,
        "num_hidden_groups": model.encoder.distinct_layers,
        "classifier_dropout_prob": model.encoder.dropout,
    }


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    return [
        *embedding_rows("albert.embeddings"),
        *rows("encoder.embedding.widen_sum", "albert.encoder.embedding_hidden_mapping_in"),
        *layer_rows(model, _LAYER, "albert.encoder.albert_layer_groups.{}.albert_layers.0"),
        *head_rows(model, _HEAD_NAMES),
        *vocabulary_rows(model, "predictions.decoder", "predictions.bias"),
    ]


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table, heads=True)


ALBERT = Family(
    model_type="albert",
    architectures=tuple(_heads(Choices("gelu_tanh", True, 2))),
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="albert.",
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    ignored=(r".*\.position_ids",),
    renamed=OLD_NORMS,
)
