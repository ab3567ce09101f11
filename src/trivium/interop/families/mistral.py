"""Mistral (Jiang et al. 2023): LLaMA without biases, with sliding-window attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, ROPE_HOOK
from trivium.interop.family import Hook, SpecTree, attention_of, decoder_classes, kv_heads_option
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.patterns import Sliding


def read_window(config: ConfigReader, tree: SpecTree, default: int | None = 4096) -> None:
    """Read the sliding window; its size in the file includes the query position itself.

    Null means no window. If the file lacks the option, `default` is used.
    """
    window = config.get("sliding_window", None if "sliding_window" in config.file_keys else default)
    if window is not None and window < 2:
        raise config.unsupported("sliding_window", expected="2 or more")
    if window is not None:
        tree.set("decoder.layers.mixer.pattern", Sliding(window=window - 1))


def write_window(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the size of the sliding window, including the query position itself, or null."""
    pattern = attention_of(spec).pattern
    config["sliding_window"] = pattern.window + 1 if isinstance(pattern, Sliding) else None


MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    architectures=decoder_classes("Mistral"),
    config={**CONFIG, "num_key_value_heads": kv_heads_option(missing=8)},
    fixed={**FIXED, "decoder.layers.mixer.bias": False, "decoder.layers.feed_forward.bias": False},
    expected={"attention_bias": False, "mlp_bias": False},
    ignored="",
    hooks=(ROPE_HOOK, Hook(read_window, write_window)),
    is_variant=True,
)
