"""RWKV, version 4 (Peng et al. 2023).

At inference `transformers` halves the residual stream after every `rescale_every` layers to keep it
within the range of float16. The norms cancel this factor, apart from their eps. Trivium does not
halve the residual stream, and writes `rescale_every` as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trivium.interop.family import Family, Hook, Option, hf_classes, per_layer
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.norm import LayerNorm

_DEFAULT_WIDTH = 4096


def _multiple_of_width(factor: int) -> Callable[[ConfigReader], int]:
    """Return a function for `Option.default` that computes `factor` * `hidden_size`."""
    return lambda config: factor * config.require("hidden_size", _DEFAULT_WIDTH)


def _disable_rescaling(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write `rescale_every` as 0: the residual stream is never halved."""
    config["rescale_every"] = 0


_LAYER = {
    "ln1": "mixer_residual.{norm}",
    "attention.time_decay": "mixer.time_decay",
    "attention.time_first": "mixer.time_first",
    "attention.time_mix_key": "mixer.mix_key",
    "attention.time_mix_value": "mixer.mix_value",
    "attention.time_mix_receptance": "mixer.mix_receptance",
    "attention.key": "mixer.key",
    "attention.value": "mixer.value",
    "attention.receptance": "mixer.receptance",
    "attention.output": "mixer.output",
    "ln2": "feed_forward_residual.{norm}",
    "feed_forward.time_mix_key": "feed_forward.mix_key",
    "feed_forward.time_mix_receptance": "feed_forward.mix_receptance",
    "feed_forward.key": "feed_forward.key",
    "feed_forward.receptance": "feed_forward.receptance",
    "feed_forward.value": "feed_forward.value",
}

RWKV = Family(
    "rwkv",
    architectures=hf_classes("Rwkv", "ForCausalLM Model"),
    stacks=("decoder",),
    config={
        "vocab_size": Option("vocab_size", 50_277),
        "hidden_size": Option("d_model", _DEFAULT_WIDTH),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "attention_hidden_size": Option("decoder.layers.mixer.d_inner", _multiple_of_width(1)),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", _multiple_of_width(4)),
        "tie_word_embeddings": Option("heads.lm.tied", False),
    },
    fixed={
        "embedding.norm": LayerNorm(),
        "decoder.layers.mixer.kind": "time-mixing",
        "decoder.layers.feed_forward.kind": "channel-mixing",
        "decoder.layers.norm.kind": "layer",
        "decoder.layers.norm_placement": "pre",
        "initialization": {"kind": "normal", "embedding_std": 1e-4},
    },
    weights={
        "rwkv.embeddings": "tokens",
        "rwkv.blocks.0.pre_ln": "decoder.embedding.norm",
        **per_layer("rwkv.blocks.{i}", "decoder", _LAYER),
        "rwkv.ln_out": "decoder.norm",
    },
    heads={"lm": {"head": ""}},
    base="rwkv.",
    hf_shapes=lambda spec: {
        f"time_mix_{name}": (1, 1, spec.d_model) for name in ("key", "value", "receptance")
    },
    expected={"layer_norm_epsilon": 1e-5},  # the final norm always has this eps
    ignored="context_length rescale_every",
    tied_aliases={"head.weight": "rwkv.embeddings.weight"},
    hooks=(Hook(write=_disable_rescaling),),
)
