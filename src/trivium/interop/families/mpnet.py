"""MPNet (Song et al. 2020): RoBERTa with relative position biases that all layers share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.bert import CONFIG, weight_names
from trivium.interop.families.roberta import ROBERTA
from trivium.interop.family import (
    MULTIPLE_CHOICE,
    Hook,
    NameMap,
    Option,
    SpecTree,
    attention_of,
    encoder_classes,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.relative_bias import RelativeBias

_BUCKETS = "relative_attention_num_buckets"
_OFFSET = 2  # the padding token of the positions has id 1, whatever the config says
_LAYER: NameMap = {
    "attention.attn.q": "mixer.query",
    "attention.attn.k": "mixer.key",
    "attention.attn.v": "mixer.value",
    "attention.attn.o": "mixer.output",
    "attention.LayerNorm": "mixer_residual.{norm}",
    "intermediate.dense": "feed_forward.up",
    "output.dense": "feed_forward.down",
    "output.LayerNorm": "feed_forward_residual.{norm}",
}


_POOLED = {"mpnet.pooler.dense": "dense.linear", "classifier": "classifier"}


def _read_positions(config: ConfigReader, tree: SpecTree) -> None:
    """Read the learned positions. transformers uses 32 buckets, whatever the config says."""
    config.expect(_BUCKETS, 32)
    length = config.require("max_position_embeddings", 512)
    tree.set("embedding.positions.max_length", length - _OFFSET)


def _write_positions(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the learned positions. Raises SpecError for other relative positions."""
    positions, relative = spec.embedding.positions, attention_of(spec).positions
    if not isinstance(positions, Learned) or not isinstance(relative, RelativeBias):
        raise SpecError("positions other than learned ones with relative biases")
    config[_BUCKETS] = relative.num_buckets
    config["max_position_embeddings"] = positions.max_length + _OFFSET


MPNET = replace(
    ROBERTA,
    model_type="mpnet",
    architectures={
        **encoder_classes("MPNet"),
        "MPNetForMultipleChoice": replace(MULTIPLE_CHOICE, weights={"classifier": _POOLED}),
    },
    config={
        **{name: row for name, row in CONFIG.items() if name != "type_vocab_size"},
        "vocab_size": Option("vocab_size", 30_527),
    },
    fixed={
        **ROBERTA.fixed,
        "embedding.positions.offset": _OFFSET,
        "encoder.layers.mixer.positions.kind": "relative-bias",
    },
    weights={
        **weight_names(_LAYER, "mpnet", "mpnet.encoder.layer.{i}"),
        "mpnet.encoder.relative_attention_bias": "encoder.tables.0",
    },
    heads={**ROBERTA.heads, "pooler": {"mpnet.pooler.dense": "linear"}},
    base="mpnet.",
    tied_aliases={
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    hooks=(Hook(_read_positions, _write_positions),),
    tokenizer_class="MPNetTokenizer",
    is_variant=True,
)
