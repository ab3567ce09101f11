"""Gemma (Gemma Team 2024, arXiv 2403.08295): LLaMA with GeGLU and scaled token embeddings."""

from __future__ import annotations

from dataclasses import replace

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, ROPE_HOOK
from trivium.interop.family import ACTIVATIONS, Hook, Option, SpecTree, hf_classes, kv_heads_option
from trivium.interop.hf_config import ConfigReader


def _read_scale(config: ConfigReader, tree: SpecTree) -> None:
    """Read the scale of the token embeddings, which is the square root of the width."""
    tree.set("embedding.scale", tree.get("d_model") ** 0.5)


# The first releases say "gelu" and mean its tanh approximation, as transformers reads it.
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS, "gelu": "gelu_tanh"}

GEMMA = replace(
    LLAMA,
    model_type="gemma",
    architectures=hf_classes(
        "Gemma", "ForCausalLM Model ForSequenceClassification ForTokenClassification"
    ),
    config={
        **CONFIG,
        "vocab_size": Option("vocab_size", 256_000),
        "hidden_size": Option("d_model", 3072),
        "num_hidden_layers": Option("decoder.num_layers", 28),
        "num_attention_heads": Option("decoder.layers.mixer.num_heads", 16),
        "num_key_value_heads": kv_heads_option(missing=16, num_heads=16),
        "head_dim": Option("decoder.layers.mixer.head_dim", 256),
        "intermediate_size": Option("decoder.layers.feed_forward.d_ff", 24_576),
        "hidden_act": Option(
            "decoder.layers.feed_forward.activation", "gelu_pytorch_tanh", _ACTIVATIONS
        ),
        "attention_bias": Option("decoder.layers.mixer.bias", False),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed={**FIXED, "decoder.layers.norm.offset": 1, "decoder.layers.feed_forward.bias": False},
    expected={"use_bidirectional_attention": False},
    ignored="hidden_activation",
    hooks=(ROPE_HOOK, Hook(_read_scale)),
    tokenizer_class="GemmaTokenizer",
)
