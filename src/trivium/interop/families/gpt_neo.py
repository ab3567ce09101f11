"""GPT-Neo (Black et al. 2021): GPT with unscaled scores, and windows in every second layer."""

from __future__ import annotations

from typing import Any

from trivium.interop.family import (
    Family,
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    first_mlp,
    hf_classes,
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
    if len(kinds) != count or not {*kinds} <= {_GLOBAL, _LOCAL} or window < 2:
        expected = f'"{_GLOBAL}" or "{_LOCAL}" for each layer, with a window_size of 2 or more'
        raise config.unsupported("attention_types", expected=expected)
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

GPT_NEO = Family(
    "gpt_neo",
    architectures=hf_classes(
        "GPTNeo",
        "ForCausalLM Model ForSequenceClassification ForTokenClassification ForQuestionAnswering",
    ),
    stacks=("decoder",),
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
        "embedding.positions.kind": "learned",
        "decoder.layers.mixer.bias": False,
        "decoder.layers.mixer.output_bias": True,
        "decoder.layers.mixer.scale": 1.0,
        "decoder.layers.norm.kind": "layer",
        "decoder.layers.norm_placement": "pre",
        "heads.classifier.pooling": "last",
        "heads.classifier.bias": False,
        "initialization": {"kind": "normal", "residual_init": "scaled"},
    },
    weights={
        "transformer.wte": "tokens",
        "transformer.wpe": "decoder.embedding.positions",
        **per_layer("transformer.h.{i}", "decoder", _LAYER),
        "transformer.ln_f": "decoder.norm",
    },
    heads={"classifier": {"score": "classifier"}},
    base="transformer.",
    ignored="classifier_dropout summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj gradient_checkpointing",
    tied_aliases={"lm_head.weight": "transformer.wte.weight"},
    buffers=(r".*\.attn\.attention\.(masked_bias|bias)",),
    hooks=(Hook(_read_attention, _write_attention),),
    tokenizer_class="GPT2Tokenizer",
)
