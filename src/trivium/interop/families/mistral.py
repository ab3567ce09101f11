"""Mistral (Jiang et al. 2023): LLaMA's tables, without biases, with a sliding window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.llama import CONFIG, FIXED, LLAMA, ROTARY
from trivium.interop.family import Hook, SpecTree, attention_of, decoder_classes
from trivium.interop.hf_config import ConfigReader
from trivium.spec import ModelSpec, Sliding


def read_window(config: ConfigReader, tree: SpecTree, default: int | None = 4096) -> None:
    """Hugging Face's window counts the position itself. A null is no window, nothing the default.

    So it is with key and value heads: null is as many as query heads.
    """
    window = config.get("sliding_window", None if "sliding_window" in config.named else default)
    if window is not None and window < 2:
        raise config.unsupported("sliding_window", expected="2 or more")
    if window is not None:
        tree.set("decoder.mixer.pattern", Sliding(window=window - 1))
    if "num_key_value_heads" not in config.named:
        tree.set("decoder.mixer.num_kv_heads", 8)


def write_window(spec: ModelSpec, config: dict[str, Any]) -> None:
    """The inverse of `read_window`."""
    pattern = attention_of(spec).pattern
    config["sliding_window"] = pattern.window + 1 if isinstance(pattern, Sliding) else None


MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    architectures=decoder_classes("Mistral"),
    config=CONFIG,
    fixed={**FIXED, "decoder.mixer.bias": False, "decoder.feed_forward.bias": False},
    expected={"attention_bias": False, "mlp_bias": False},
    ignored="",
    hooks=(ROTARY, Hook(read_window, write_window)),
    is_variant=True,
)
