"""XLNet (Yang et al. 2019): an encoder trained with permutation language modeling.

`mem_len` is the length of the memory of earlier segments. The options for memory during training
(`reuse_len`, `use_mems_train`) do not change the logits and are ignored.
"""

from __future__ import annotations

from typing import Any

from trivium.interop.family import (
    MULTIPLE_CHOICE,
    Architecture,
    Family,
    Hook,
    Option,
    SpecTree,
    activation,
    attention_of,
    head_dim,
    hf_classes,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec

_SUMMARY = {"sequence_summary.summary": "dense.linear", "logits_proj": "classifier"}


def _read_mem_len(config: ConfigReader, tree: SpecTree) -> None:
    length = config.get("mem_len", None if "mem_len" in config.file_keys else 512)
    if length:
        tree.set("encoder.layers.mixer.kind", "transformer-xl-attention")
        tree.set("encoder.layers.mixer.memory", length)


def _write_mem_len(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write `mem_len`, the length of the memory of earlier segments; null means no memory."""
    config["mem_len"] = getattr(attention_of(spec), "memory", None)


def _default_head_dim(config: ConfigReader) -> int:
    """Return the default dimension of an attention head, d_model / n_head."""
    return head_dim(config.require("d_model", 1024), config.require("n_head", 16))


def _hf_shapes(spec: TransformerSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes in files of tensors that have a separate axis for heads there.

    The keys are the last parts of the names of the tensors.
    """
    attention, width = attention_of(spec), spec.d_model
    heads = attention.num_heads, attention.head_dim
    biases = dict.fromkeys(("r_w_bias", "r_r_bias", "r_s_bias"), heads)
    matrices = dict.fromkeys("qkvor", (width, *heads))
    return {**biases, **matrices, "seg_embed": (2, *heads), "mask_emb": (1, 1, width)}


_LAYER = {
    "rel_attn.q": "mixer.query.weight",
    "rel_attn.k": "mixer.key.weight",
    "rel_attn.v": "mixer.value.weight",
    "rel_attn.o": "mixer.output.weight",
    "rel_attn.r": "mixer.positions.distance",
    "rel_attn.r_w_bias": "mixer.positions.content_bias",
    "rel_attn.r_r_bias": "mixer.positions.distance_bias",
    "rel_attn.r_s_bias": "mixer.positions.type_bias",
    "rel_attn.seg_embed": "mixer.positions.types",
    "rel_attn.layer_norm": "mixer_residual.{norm}",
    "ff.layer_1": "feed_forward.up",
    "ff.layer_2": "feed_forward.down",
    "ff.layer_norm": "feed_forward_residual.{norm}",
}

XLNET = Family(
    "xlnet",
    tokenizer_class="XLNetTokenizer",
    architectures={
        "XLNetModel": Architecture(),
        "XLNetLMHeadModel": Architecture(("mlm",)),
        **hf_classes("XLNet", "ForSequenceClassification ForTokenClassification"),
        "XLNetForMultipleChoice": MULTIPLE_CHOICE,
        "XLNetForQuestionAnsweringSimple": Architecture(("span",)),
    },
    stacks=("encoder",),
    config={
        "vocab_size": Option("vocab_size", 32_000),
        "d_model": Option("d_model", 1024),
        "n_layer": Option("encoder.num_layers", 24),
        "n_head": Option("encoder.layers.mixer.num_heads", 16),
        "d_head": Option("encoder.layers.mixer.head_dim", _default_head_dim),
        "d_inner": Option("encoder.layers.feed_forward.d_ff", 4096),
        "ff_activation": activation("gelu", "encoder.layers.feed_forward"),
        "layer_norm_eps": Option("encoder.layers.norm.eps", 1e-12),
        "dropout": Option("encoder.dropout", 0.1),
        "tie_word_embeddings": Option("heads.mlm.tied", True),
        "summary_type": Option(
            "heads.classifier.pooling", "last", {each: each for each in ("last", "first")}
        ),
        "summary_activation": activation("tanh", "heads.classifier.dense"),
    },
    fixed={
        "embedding.query_stream": True,
        "encoder.layers.norm.kind": "layer",
        "encoder.layers.norm_placement": "post",
        "encoder.layers.mixer.bias": False,
        "encoder.layers.mixer.positions.kind": "xlnet",
    },
    weights={
        "transformer.word_embedding": "tokens",
        "transformer.mask_emb": "encoder.embedding.query.weight",
        **per_layer("transformer.layer.{i}", "encoder", _LAYER),
    },
    heads={"mlm": {"lm_loss": ""}, "classifier": _SUMMARY},
    base="transformer.",
    expected={
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "untie_r": True,
        "summary_use_proj": True,
    },
    ignored="reuse_len use_mems_eval use_mems_train same_length start_n_top end_n_top "
    "summary_last_dropout",
    transposed=("q", "k", "v", "r"),
    hf_shapes=_hf_shapes,
    tied_aliases={"lm_loss.weight": "transformer.word_embedding.weight"},
    hooks=(Hook(_read_mem_len, _write_mem_len),),
)
