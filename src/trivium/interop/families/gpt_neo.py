"""GPT-Neo (Black et al. 2021): GPT with unscaled scores, and windows in every second layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.gpt2 import GPT2, IGNORED, PRE_NORM
from trivium.interop.families.qwen2 import read_layer_types, write_layer_types
from trivium.interop.family import (
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    decoder_classes,
    per_layer,
)
from trivium.interop.hf_config import FULL, SLIDING, ConfigReader
from trivium.models.transformer import TransformerSpec

_KINDS = {"global": FULL, "local": SLIDING}


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Read the attention of each layer: "attention_types" lists kinds and how often they repeat."""
    config.ignore("attention_layers")  # transformers computes them from attention_types
    types = config.get("attention_types", [[[*_KINDS], 12]])
    kinds = [kind for each, times in types for _ in range(min(times, 1000)) for kind in each]
    if len(kinds) != tree.get("decoder.num_layers") or not {*kinds} <= {*_KINDS}:
        raise config.unsupported("attention_types", expected='"global" or "local" for each layer')
    layers = config.with_option("layer_types", [_KINDS[kind] for kind in kinds])
    window = config.get("window_size", 256)
    read_layer_types(layers, tree, window, lambda _: False, window_option="window_size")


def _write_attention(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the attention of each layer, and the size of the window."""
    config["window_size"] = write_layer_types(spec, config) or 256
    kinds = ["local" if kind == SLIDING else "global" for kind in config.pop("layer_types")]
    config |= {"attention_layers": kinds, "attention_types": [[kinds, 1]]}


_LAYER: NameMap = {
    "ln_1": "mixer_residual.{norm}",
    "attn.attention.q_proj": "mixer.query",
    "attn.attention.k_proj": "mixer.key",
    "attn.attention.v_proj": "mixer.value",
    "attn.attention.out_proj": "mixer.output",
    "ln_2": "feed_forward_residual.{norm}",
    "mlp.c_fc": "feed_forward.up",
    "mlp.c_proj": "feed_forward.down",
}

GPT_NEO = replace(
    GPT2,
    model_type="gpt_neo",
    architectures=decoder_classes("GPTNeo"),
    config={
        "vocab_size": Option("vocab_size", 50_257),
        "max_position_embeddings": Option("embedding.positions.max_length", 2048),
        "hidden_size": Option("d_model", 2048),
        "intermediate_size": Option(
            "decoder.layers.feed_forward.d_ff", lambda config: 4 * config.get("hidden_size", 2048)
        ),
        "num_layers": Option("decoder.num_layers", 24),
        "num_heads": Option("decoder.layers.mixer.num_heads", 16),
        "activation_function": activation("gelu_new", "decoder.layers.feed_forward"),
        "layer_norm_epsilon": Option("decoder.layers.norm.eps", 1e-5),
        "resid_dropout": Option("decoder.dropout", 0.0),
        "embed_dropout": Option("decoder.dropout", write_only=True),
        "attention_dropout": Option("decoder.dropout", write_only=True),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed={
        **PRE_NORM,
        "embedding.positions.kind": "learned",
        "decoder.layers.mixer.bias": False,
        "decoder.layers.mixer.output_bias": True,
        "decoder.layers.mixer.scale": 1.0,
    },
    weights={
        "transformer.wte": "tokens",
        "transformer.wpe": "decoder.embedding.positions",
        **per_layer("transformer.h.{i}", "decoder", _LAYER),
        "transformer.ln_f": "decoder.norm",
    },
    expected={},
    ignored=f"{IGNORED} classifier_dropout gradient_checkpointing",
    transposed=(),
    buffers=(r".*\.attn\.attention\.(masked_bias|bias)",),
    hooks=(Hook(_read_attention, _write_attention),),
    tokenizer_class="GPT2Tokenizer",
)
