"""Falcon (Almazrouei et al. 2023): parallel blocks, multi-query or grouped-query attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.bloom import BLOOM, LAYER
from trivium.interop.families.gpt2 import PRE_NORM
from trivium.interop.families.llama import read_rope, rope_options, write_rope
from trivium.interop.family import (
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    attention_of,
    decoder_classes,
    head_dim,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.blocks import BlockKind, ParallelLayers, SequentialLayers
from trivium.nn.positions.alibi import ALiBi

_MIXER = "decoder.layers.mixer"


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Read the block, the key-value heads and the positions."""
    heads = tree.get(f"{_MIXER}.num_heads")
    is_new, is_parallel = config.get("new_decoder_architecture"), config.get("parallel_attn", True)
    num_norms = config.get("num_ln_in_parallel_attn", 2 if is_new else 1)
    if num_norms not in ((1, 2) if is_new else (1,)) or (is_new and not is_parallel):
        raise config.unsupported("num_ln_in_parallel_attn", expected="1, or 2 in parallel blocks")
    block = ParallelLayers(norms="separate" if num_norms == 2 else "shared")
    tree.set("decoder.layers.block", block if is_parallel else SequentialLayers())
    one, groups = config.get("multi_query", True), config.get("num_kv_heads", heads)
    tree.set(f"{_MIXER}.num_kv_heads", groups if is_new else 1 if one else heads)
    if config.get("alibi", False):
        scale = head_dim(tree.get("d_model"), heads) ** -0.5
        tree.set(f"{_MIXER}.positions", ALiBi(scale=scale, rounding="bfloat16"))
        config.ignore("rope_parameters", "rope_theta", "rope_scaling", "max_position_embeddings")
    else:
        tree.set(f"{_MIXER}.positions.kind", "rotary")
        read_rope(config, tree, rope_options(config))


def _write_attention(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the block, the key-value heads and the positions."""
    attention, block = attention_of(spec), spec.stacks[0].every_layer[0].block
    is_parallel, heads = isinstance(block, ParallelLayers), attention.kv_heads
    is_new = heads not in (1, attention.num_heads) or _has_two_norms(block)
    if is_new and not is_parallel:
        raise SpecError("decoder.layers.block = sequential with groups of query heads")
    config |= {
        "new_decoder_architecture": is_new,
        "parallel_attn": is_parallel,
        "num_kv_heads": heads if is_new else attention.num_heads,
        "multi_query": heads == 1,
        "num_ln_in_parallel_attn": 2 if _has_two_norms(block) else 1,
        "alibi": isinstance(attention.positions, ALiBi),
    }
    if not config["alibi"]:
        write_rope(attention.positions, config)


def _has_two_norms(block: BlockKind) -> bool:
    """Return whether attention and feed-forward network of a parallel block have own norms."""
    return isinstance(block, ParallelLayers) and block.norms == "separate"


def _weight_names(spec: TransformerSpec) -> NameMap:
    """Return the mapping of weight names, in which the names of norms depend on the block."""
    two = _has_two_norms(spec.stacks[0].every_layer[0].block)
    names = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"} if two else {}
    layer = {names.get(name, name): local for name, local in LAYER.items()}
    return {
        "transformer.word_embeddings": "tokens",
        **per_layer("transformer.h.{i}", "decoder", layer),
        "transformer.ln_f": "decoder.norm",
    }


FALCON = replace(
    BLOOM,
    model_type="falcon",
    architectures=decoder_classes("Falcon"),
    config={
        "vocab_size": Option("vocab_size", 65_024),
        "hidden_size": Option("d_model", 4544),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "num_attention_heads": Option(f"{_MIXER}.num_heads", 71),
        "ffn_hidden_size": Option(
            "decoder.layers.feed_forward.d_ff", lambda config: 4 * config.get("hidden_size", 4544)
        ),
        "bias": Option((f"{_MIXER}.bias", "decoder.layers.feed_forward.bias"), False),
        "activation": activation("gelu", "decoder.layers.feed_forward"),
        "layer_norm_epsilon": Option("decoder.layers.norm.eps", 1e-5),
        "hidden_dropout": Option("decoder.dropout", 0.0),
        "attention_dropout": Option("decoder.dropout", write_only=True),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed=PRE_NORM,
    weights=_weight_names,
    expected={},
    ignored="apply_residual_connection_post_layernorm classifier_dropout ff_factor",
    buffers=(r".*\.rotary_emb\.inv_freq",),
    hooks=(Hook(_read_attention, _write_attention),),
)
