"""BigBird (Zaheer et al. 2020): BERT with block-sparse attention for long sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.bert import BERT, CONFIG, FIXED
from trivium.interop.family import Hook, Option, SpecTree, activation, head_dim, hf_classes
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.mixers.block_sparse_attention import BlockSparseAttention


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Read the kind of attention and the embedding scale."""
    if config.require("rescale_embeddings", False):
        tree.set("embedding.scale", tree.get("d_model") ** 0.5)
    read_block_sparse(config, tree)


def read_block_sparse(config: ConfigReader, tree: SpecTree) -> None:
    """Read the kind of attention in the encoder, block-sparse or full.

    The seed of a layer's random blocks is the layer index.
    """
    mixer, width = tree.get("encoder.layers.mixer"), tree.get("d_model")
    kinds = {"block_sparse": True, "original_full": False}
    if config.translate("attention_type", kinds, "block_sparse"):
        sparse = BlockSparseAttention(**mixer, head_dim=head_dim(width, mixer["num_heads"]))
        layers = range(min(tree.get("encoder.num_layers"), 1000))  # a spec refuses more
        tree.repeat_per_mixer("encoder", [sparse.replace(seed=layer) for layer in layers])
    else:
        del mixer["block_size"], mixer["num_random"]


def _write_attention(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the kind of attention (block-sparse or full) and the embedding scale."""
    assert spec.encoder is not None
    sparse = isinstance(spec.encoder.mixers[0], BlockSparseAttention)
    config["attention_type"] = "block_sparse" if sparse else "original_full"
    config["rescale_embeddings"] = spec.embedding.scale != 1.0


BIG_BIRD = replace(
    BERT,
    model_type="big_bird",
    architectures=hf_classes(
        "BigBird",
        "Model ForMaskedLM ForPreTraining ForSequenceClassification ForTokenClassification",
    ),
    config={
        **CONFIG,
        "hidden_act": activation(
            "gelu_new", "encoder.layers.feed_forward", "heads.mlm.dense", "heads.classifier.dense"
        ),
        "max_position_embeddings": Option("embedding.positions.max_length", 4096),
        "use_bias": Option("encoder.layers.mixer.bias", True),
        "block_size": Option("encoder.layers.mixer.block_size", 64),
        "num_random_blocks": Option("encoder.layers.mixer.num_random", 3),
    },
    fixed={**FIXED, "encoder.layers.mixer.output_bias": True},
    heads={
        **BERT.heads,
        "nsp": {"bert.pooler": "pooler.linear", "cls.seq_relationship": "classifier"},
        "pooler": {"bert.pooler": "linear"},
        "classifier": {"classifier.dense": "dense.linear", "classifier.out_proj": "classifier"},
    },
    ignored="",
    hooks=(Hook(_read_attention, _write_attention),),
    tokenizer_class="BigBirdTokenizer",
    is_variant=True,
)
