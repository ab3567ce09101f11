"""Granite 3 (IBM 2024): LLaMA with four multipliers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import LLAMA
from trivium.interop.family import Hook, Option, SpecTree, attention_of, hf_classes
from trivium.interop.hf_config import ConfigReader
from trivium.models.heads.vocabulary import LMHead
from trivium.models.transformer import TransformerSpec


def _read_scales(config: ConfigReader, tree: SpecTree) -> None:
    """Read the scale of the attention scores, and the number that divides the logits.

    The hidden states are multiplied by the inverse of this number here.
    """
    tree.set("decoder.layers.mixer.scale", config.get("attention_multiplier", 1.0))
    tree.set("heads.lm.scale", 1.0 / config.get("logits_scaling", 1.0))


def _write_scales(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the scale of the attention scores, and the number that divides the logits."""
    config["attention_multiplier"] = attention_of(spec).score_scale
    scales = [head.scale for head in spec.heads if isinstance(head, LMHead)]
    config["logits_scaling"] = 1.0 / scales[0] if scales else 1.0


GRANITE = replace(
    LLAMA,
    model_type="granite",
    architectures=hf_classes("Granite", "ForCausalLM Model"),
    config={
        **LLAMA.config,
        "vocab_size": Option("vocab_size", 32_000),
        "hidden_size": Option("d_model", 4096),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 32),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 11_008),
        "embedding_multiplier": Option("embedding.scale", 1.0),
        "residual_multiplier": Option("decoder.layers.residual_multiplier", 1.0),
    },
    ignored="",
    expected={},
    hooks=(*LLAMA.hooks, Hook(_read_scales, _write_scales)),
    tokenizer_class="",
    is_variant=True,
)
