"""ModernBERT's decoder (Ettin; Weller et al. 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import rope_parameters
from trivium.interop.families.modernbert import (
    BASES,
    MODERNBERT,
    read_layer_rotary,
    rotary_by_layer_type,
)
from trivium.interop.families.qwen2 import read_layer_types, write_layer_types
from trivium.interop.family import Hook, Option, SpecTree, activation, hf_classes, per_layer
from trivium.interop.hf_config import FULL, SLIDING, ConfigReader
from trivium.models.transformer import TransformerSpec


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Read each layer's attention: full, or to the last `local_attention` // 2 positions."""
    full = read_layer_rotary(config, FULL, "global_rope_theta", BASES[FULL])
    sliding = read_layer_rotary(config, SLIDING, "local_rope_theta", BASES[SLIDING])
    tree.set("decoder.layers.mixer.positions", full)
    every = config.require("global_attn_every_n_layers", 3)
    window = config.require("local_attention", 128) // 2
    option, slides = "local_attention", lambda i: i % every > 0
    read_layer_types(config, tree, window, slides, option, least=4, positions=sliding)


def _write_attention(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the layer types, the window, and the RoPE of each layer type."""
    rotary = rotary_by_layer_type(spec, BASES)
    config["local_attention"] = 2 * (write_layer_types(spec, config) or 64)
    config["rope_parameters"] = {
        kind: rope_parameters(positions, config) for kind, positions in rotary.items()
    }


_LAYER = {
    "attn_norm": "mixer_residual.{norm}",
    "attn.q_proj": "mixer.query",
    "attn.k_proj": "mixer.key",
    "attn.v_proj": "mixer.value",
    "attn.Wo": "mixer.output",
    "mlp_norm": "feed_forward_residual.{norm}",
    "mlp.Wi": ("feed_forward.gate", "feed_forward.up"),
    "mlp.Wo": "feed_forward.down",
}
_DENSE = ("heads.lm.dense", "heads.classifier.dense")
_BIASES = ("heads.lm.dense.bias", "heads.classifier.dense.bias", "heads.classifier.bias")
_SIZES = {"vocab_size": 50_368, "hidden_size": 768, "num_hidden_layers": 22}
_SIZES |= {"num_attention_heads": 12, "intermediate_size": 1152}


def _to_decoder(path: str) -> str:
    """Return the path in a decoder for a path in ModernBERT's encoder."""
    return path.replace("encoder.", "decoder.").replace("heads.mlm.", "heads.lm.")


MODERNBERT_DECODER = replace(
    MODERNBERT,
    model_type="modernbert-decoder",
    architectures=hf_classes("ModernBertDecoder", "ForCausalLM Model ForSequenceClassification"),
    stacks=("decoder",),
    config={
        **{
            name: replace(
                option,
                fields=tuple(map(_to_decoder, option.paths)),
                default=_SIZES.get(name, option.default),
            )
            for name, option in MODERNBERT.options.items()
            if name != "classifier_pooling"
        },
        "classifier_activation": activation("gelu", *_DENSE),
        "classifier_bias": Option(_BIASES, False),
    },
    fixed={
        **{_to_decoder(path): value for path, value in MODERNBERT.fixed.items()},
        "heads.classifier.pooling": "last",
    },
    weights={
        "model.embeddings.tok_embeddings": "tokens",
        "model.embeddings.norm": "decoder.embedding.norm",
        **per_layer("model.layers.{i}", "decoder", _LAYER),
        "model.final_norm": "decoder.norm",
    },
    heads={
        "lm": {"lm_head.dense": "dense.linear", "lm_head.norm": "dense.norm", "decoder": ""},
        "classifier": MODERNBERT.heads["classifier"],
    },
    # transformers computes the window from local_attention and does not read the others.
    ignored=f"{MODERNBERT.ignored} sliding_window causal_mask is_causal masked_prediction "
    "classifier_pooling",
    hooks=(Hook(_read_attention, _write_attention),),
)
