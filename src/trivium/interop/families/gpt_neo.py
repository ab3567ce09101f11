"""GPT-Neo (Black et al. 2021): GPT with unscaled scores, and windows in every second layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.gpt2 import GPT2, IGNORED, PRE_NORM
from trivium.interop.family import (
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    decoder_classes,
    first_mlp,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.patterns import Sliding

_GLOBAL, _LOCAL = "global", "local"


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Read the attention of each layer, and the width of the feed-forward network."""
    count, window = tree.get("decoder.num_layers"), config.get("window_size", 256)
    types = config.get("attention_types", [[[_GLOBAL, _LOCAL], 12]])
    kinds = [kind for each, times in types for _ in range(min(times, 1000)) for kind in each]
    config.ignore("attention_layers")  # transformers computes them from attention_types
    if len(kinds) != count or not {*kinds} <= {_GLOBAL, _LOCAL}:
        expected = f'"{_GLOBAL}" or "{_LOCAL}" for each layer'
        raise config.unsupported("attention_types", expected=expected)
    if window < 2 and _LOCAL in kinds:
        raise config.unsupported("window_size", expected="2 or more, with local layers")
    full = {**tree.get("decoder.layers.mixer"), "kind": "attention"}
    local = {**full, "pattern": {"kind": "sliding", "window": window - 1}}
    width = tree.get("d_model")
    tree.set("decoder.layers.feed_forward.d_ff", config.get("intermediate_size", 4 * width))
    tree.repeat_per_mixer("decoder", [local if kind == _LOCAL else full for kind in kinds])


def _write_attention(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the attention of each layer, and the width of the feed-forward network."""
    patterns = [attention.pattern for attention in spec.stacks[0].attentions]
    kinds = [_LOCAL if isinstance(one, Sliding) else _GLOBAL for one in patterns]
    windows = [one.window + 1 for one in patterns if isinstance(one, Sliding)]
    config["attention_types"] = [[[kind], 1] for kind in kinds]
    config["attention_layers"] = kinds
    config["window_size"] = windows[0] if windows else 256
    config["intermediate_size"] = first_mlp(spec).d_ff


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
