"""RoBERTa (Liu et al. 2019): BERT without NSP; position ids start after the padding id."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.bert import BERT, CONFIG, FIXED, LAYER, weight_names
from trivium.interop.family import MULTIPLE_CHOICE, Architecture, Hook, SpecTree, hf_classes
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.positions.learned import Learned


def _read_position_offset(config: ConfigReader, tree: SpecTree) -> None:
    """Read the position offset: position 0 uses row `pad_token_id` + 1 of the embedding matrix."""
    offset = config.require("pad_token_id", 1) + 1
    length = tree.get("embedding.positions.max_length")
    tree.set("embedding.positions.offset", offset)
    tree.set("embedding.positions.max_length", length - offset)


def _write_position_offset(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write `pad_token_id` (offset - 1) and `max_position_embeddings`, including the offset."""
    positions = spec.embedding.positions
    if not isinstance(positions, Learned) or positions.offset < 1:
        raise SpecError("embedding.positions.offset = 0")
    config["pad_token_id"] = positions.offset - 1
    config["max_position_embeddings"] = positions.max_length + positions.offset


_POOLER = "roberta.pooler.dense"
_POOLED = {_POOLER: "dense.linear", "classifier": "classifier"}


def roberta_classes(family: str) -> dict[str, Architecture]:
    """Return the classes of a family that has the same classes as RoBERTa."""
    return {
        **hf_classes(family, "Model ForMaskedLM ForSequenceClassification"),
        f"{family}ForMultipleChoice": replace(MULTIPLE_CHOICE, weights={"classifier": _POOLED}),
        **hf_classes(family, "ForTokenClassification ForQuestionAnswering"),
    }


ROBERTA = replace(
    BERT,
    model_type="roberta",
    architectures=roberta_classes("Roberta"),
    config=CONFIG,
    fixed={
        **FIXED,
        "embedding.positions.counted": "not-padding",
        "heads.mlm.dense.activation": "gelu",
    },
    weights=weight_names(LAYER, "roberta", "roberta.encoder.layer.{i}"),
    heads={
        "mlm": {
            "lm_head.dense": "dense.linear",
            "lm_head.layer_norm": "dense.norm",
            "lm_head.bias": "bias",
            "lm_head.decoder": "",
        },
        "pooler": {_POOLER: "linear"},
        "classifier": {"classifier.dense": "dense.linear", "classifier.out_proj": "classifier"},
    },
    base="roberta.",
    ignored="classifier_dropout",
    tied_aliases={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    hooks=(Hook(_read_position_offset, _write_position_offset),),
)
