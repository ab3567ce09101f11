"""GPT (Radford et al. 2018)."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.gpt2 import CONFIG, FIXED, GPT2, IGNORED, LAYER
from trivium.interop.family import Hook, Option, SpecTree, hf_classes, per_layer
from trivium.interop.hf_config import ConfigReader

# "gelu" is the tanh approximation here, unlike in the other families.
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def _set_d_ff(config: ConfigReader, tree: SpecTree) -> None:
    """Set `d_ff` to 4 * d_model; GPT has no option for it."""
    tree.set("decoder.layers.feed_forward.d_ff", 4 * tree.get("d_model"))


GPT1 = replace(
    GPT2,
    model_type="openai-gpt",
    architectures=hf_classes("OpenAIGPT", "LMHeadModel Model ForSequenceClassification"),
    config={
        **CONFIG,
        "n_positions": Option("embedding.positions.max_length", 512),
        "afn": Option("decoder.layers.feed_forward.activation", "gelu", _ACTIVATIONS),
    },
    fixed={**FIXED, "decoder.layers.norm_placement": "post"},
    weights={
        "transformer.tokens_embed": "tokens",
        "transformer.positions_embed": "decoder.embedding.positions",
        **per_layer("transformer.h.{i}", "decoder", LAYER),
    },
    expected={"n_special": 0},
    ignored=f"{IGNORED} predict_special_tokens",
    tied_aliases={"lm_head.weight": "transformer.tokens_embed.weight"},
    buffers=(r".*\.attn\.bias", r".*\.position_ids"),
    hooks=(Hook(read=_set_d_ff),),
)
