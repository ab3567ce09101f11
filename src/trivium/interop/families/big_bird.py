"""BigBird (Zaheer et al. 2020): BERT whose attention sees a few blocks of a long text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.bert import BERT, CONFIG, FIXED
from trivium.interop.family import ACTIVATIONS, Hook, Option, SpecTree, classes, head_dim
from trivium.interop.hf_config import ConfigReader
from trivium.spec import ModelSpec
from trivium.spec.mixers.block_sparse_attention import BlockSparseAttention

_SPARSE = {"original_full": False, "block_sparse": True}


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Block-sparse layers draw other blocks, each from its number; the scale of token vectors."""
    layers, width = tree.get("encoder.num_layers"), tree.get("d_model")
    if layers > 1000:  # as in a spec, which is made after the list of layers
        raise config.unsupported("num_hidden_layers", expected="at most 1000")
    if config.require("rescale_embeddings", False):
        tree.set("embedding.scale", width**0.5)
    heads = tree.get("encoder.mixer.num_heads")
    biases = {"bias": config.require("use_bias", True), "output_bias": True}
    shared = {"num_heads": heads, "head_dim": head_dim(width, heads), **biases}
    blocks = {
        "block_size": config.require("block_size", 64),
        "num_random": config.require("num_random_blocks", 3),
    }
    mixer = {"kind": "attention", **shared}
    if config.choose("attention_type", _SPARSE, "block_sparse"):
        mixer = tuple(BlockSparseAttention(**shared, **blocks, seed=i) for i in range(layers))
    tree.set("encoder.mixer", mixer)


def _write_attention(spec: ModelSpec, config: dict[str, Any]) -> None:
    assert spec.encoder is not None
    mixer = spec.encoder.mixer_of(0)
    sparse = isinstance(mixer, BlockSparseAttention)
    config["attention_type"] = "block_sparse" if sparse else "original_full"
    if sparse:
        config["block_size"], config["num_random_blocks"] = mixer.block_size, mixer.num_random
    config["use_bias"] = getattr(mixer, "bias", True)
    config["rescale_embeddings"] = spec.embedding.scale != 1.0


BIG_BIRD = replace(
    BERT,
    model_type="big_bird",
    architectures=classes(
        "BigBird",
        "Model ForMaskedLM ForPreTraining ForSequenceClassification ForTokenClassification",
    ),
    config={
        **CONFIG,
        "hidden_act": Option(
            (
                "encoder.feed_forward.activation",
                "heads.mlm.dense.activation",
                "heads.classifier.dense.activation",
            ),
            "gelu_new",
            ACTIVATIONS,
        ),
        "vocab_size": Option("vocab_size", 50_358),
        "max_position_embeddings": Option("embedding.positions.max_length", 4096),
    },
    fixed={n: v for n, v in FIXED.items() if n != "heads.classifier.dense.activation"},
    heads={
        **BERT.heads,
        "nsp": {"bert.pooler": "pooler.linear", "cls.seq_relationship": "classifier"},
        "pooler": {"bert.pooler": "linear"},
        "classifier": {"classifier.dense": "dense.linear", "classifier.out_proj": "classifier"},
    },
    ignored="",
    tokenizer_class="BigBirdTokenizer",
    hooks=(Hook(_read_attention, _write_attention),),
    is_variant=True,
)
