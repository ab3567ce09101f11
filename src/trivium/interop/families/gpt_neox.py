"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)."""

from __future__ import annotations

from typing import Any

from trivium.interop.families.llama import ROPE_HOOK, read_rope, rope_options
from trivium.interop.family import (
    QKV,
    Family,
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    attention_of,
    hf_classes,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.blocks import ParallelLayers, SequentialLayers
from trivium.nn.positions.rotary import Rotary


def _read_rotary(config: ConfigReader, tree: SpecTree) -> None:
    """Read the options of RoPE under their current names or the names in older files."""
    rope = rope_options(config)
    share, base = config.get("rotary_pct", 0.25), config.get("rotary_emb_base", 1e4)
    tree.set(
        "decoder.layers.mixer.positions.partial_rotary_factor",
        rope.pop("partial_rotary_factor", share),
    )
    read_rope(config, tree, {"rope_theta": base, **rope})


def _write_rotary(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the options of RoPE twice: under their current names and the names in older files."""
    ROPE_HOOK.write(spec, config)
    rotary = attention_of(spec).positions
    if isinstance(rotary, Rotary):
        config["rotary_pct"] = factor = rotary.partial_rotary_factor
        config["rope_parameters"]["partial_rotary_factor"] = factor
        config["rotary_emb_base"] = config.pop("rope_theta")


_LAYER: NameMap = {
    "input_layernorm": "mixer_residual.{norm}",
    "attention.query_key_value": QKV,
    "attention.dense": "mixer.output",
    "post_attention_layernorm": "feed_forward_residual.{norm}",
    "mlp.dense_h_to_4h": "feed_forward.up",
    "mlp.dense_4h_to_h": "feed_forward.down",
}

_BLOCKS = {True: ParallelLayers(norms="separate"), False: SequentialLayers()}

GPT_NEOX = Family(
    "gpt_neox",
    architectures=hf_classes(
        "GPTNeoX",
        "ForCausalLM Model ForSequenceClassification ForTokenClassification ForQuestionAnswering",
    ),
    stacks=("decoder",),
    config={
        "vocab_size": Option("vocab_size", 50_432),
        "hidden_size": Option("d_model", 6144),
        "num_hidden_layers": Option("decoder.num_layers", 44),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 64),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 24_576),
        "hidden_act": activation("gelu", "decoder.layers.feed_forward"),
        "attention_bias": Option("decoder.layers.mixer.bias", True),
        "use_parallel_residual": Option("decoder.layers.block", True, _BLOCKS),
        "layer_norm_eps": Option("decoder.layers.norm.eps", 1e-5),
        "hidden_dropout": Option("decoder.dropout", 0.0),
        "attention_dropout": Option("decoder.dropout", write_only=True),
        "tie_word_embeddings": Option("heads.lm.tied", False),
    },
    fixed={
        "decoder.layers.mixer.positions.kind": "rotary",
        "decoder.layers.norm.kind": "layer",
        "decoder.layers.norm_placement": "pre",
        "heads.classifier.pooling": "last",
        "heads.classifier.bias": False,
        "initialization": {"kind": "small"},
    },
    weights={
        "gpt_neox.embed_in": "tokens",
        **per_layer("gpt_neox.layers.{i}", "decoder", _LAYER),
        "gpt_neox.final_layer_norm": "decoder.norm",
    },
    heads={"classifier": {"score": "classifier"}},
    base="gpt_neox.",
    fused_per_head=True,
    ignored="is_decoder classifier_dropout",
    # Before transformers 5 the head was `embed_out`.
    tied_aliases={
        "embed_out.weight": "lm_head.weight",
        "lm_head.weight": "gpt_neox.embed_in.weight",
    },
    buffers=(r".*\.attention\.(masked_)?bias", r".*\.rotary_emb\.inv_freq"),
    hooks=(Hook(_read_rotary, _write_rotary),),
)
