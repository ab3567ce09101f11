"""ALBERT (Lan et al. 2019): cross-layer weight sharing and factorised token embeddings."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.bert import ALLOWED, BERT, CONFIG, weight_names
from trivium.interop.family import Hook, Option, SpecTree, activation, encoder_classes
from trivium.interop.hf_config import ConfigReader

_LAYER = {
    "attention.query": "mixer.query",
    "attention.key": "mixer.key",
    "attention.value": "mixer.value",
    "attention.dense": "mixer.output",
    "attention.LayerNorm": "mixer_residual.{norm}",
    "ffn": "feed_forward.up",
    "ffn_output": "feed_forward.down",
    "full_layer_layer_norm": "feed_forward_residual.{norm}",
}


def _check_layer_groups(config: ConfigReader, tree: SpecTree) -> None:
    """Raise CheckpointError if the layers cannot be divided into groups of equal size.

    `transformers` divides unequal groups differently.
    """
    groups = tree.get("encoder.num_layer_groups")
    if groups < 1 or tree.get("encoder.num_layers") % groups:
        raise config.unsupported("num_hidden_groups", expected="a divisor of num_hidden_layers")


ALBERT = replace(
    BERT,
    model_type="albert",
    architectures=encoder_classes("Albert", "ForPreTraining ForMultipleChoice"),
    config={
        **CONFIG,
        "hidden_act": activation("gelu_new", "encoder.layers.feed_forward", "heads.mlm.dense"),
        "embedding_size": Option("embedding.factorised.width", 128),
        "num_hidden_groups": Option("encoder.num_layer_groups", 1),
        "hidden_dropout_prob": Option("encoder.dropout", 0.0),
        "classifier_dropout_prob": Option("encoder.dropout", write_only=True),
    },
    weights={
        **weight_names(_LAYER, "albert", "albert.encoder.albert_layer_groups.{i}.albert_layers.0"),
        "albert.encoder.embedding_hidden_mapping_in": "encoder.embedding.project_sum",
    },
    heads={
        "mlm": {
            "predictions.dense": "dense.linear",
            "predictions.LayerNorm": "dense.norm",
            "predictions.bias": "bias",
            "predictions.decoder": "",
        },
        "nsp": {"albert.pooler": "pooler.linear", "sop_classifier.classifier": "classifier"},
        "pooler": {"albert.pooler": "linear"},
        "classifier": {"albert.pooler": "dense.linear", "classifier": "classifier"},
    },
    base="albert.",
    # The first releases set memory blocks and gaps; no released model uses them.
    expected={
        **ALLOWED,
        "num_memory_blocks": 0,
        "gap_size": 0,
        "net_structure_type": 0,
        "down_scale_factor": 1,
        "inner_group_num": 1,
    },
    ignored="classifier_dropout",
    tied_aliases={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    hooks=(Hook(read=_check_layer_groups),),
    tokenizer_class="AlbertTokenizer",
    is_variant=True,
)
