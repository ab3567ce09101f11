"""Longformer (Beltagy et al. 2020): RoBERTa with sliding-window attention and global tokens.

Its multiple-choice class is not read: that class makes all tokens after the question global, while
Trivium's head with one score per text makes only the first token global.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.bert import LAYER, weight_names
from trivium.interop.families.roberta import ROBERTA
from trivium.interop.family import Hook, SpecTree, encoder_classes, head_dim
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.mixers.global_attention import GlobalAttention
from trivium.nn.patterns import Sliding


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Read `attention_window`: one sliding-window size for all layers, or one per layer."""
    layers, heads = config.num_layers(), config.require("num_attention_heads")
    given = config.require("attention_window", 512)
    windows = given if isinstance(given, list) else [given] * layers
    whole = all(isinstance(each, int) and each > 0 and each % 2 == 0 for each in windows)
    if len(windows) != layers or not whole:
        expected = "an even number above 0, or one for each layer"
        raise config.unsupported("attention_window", expected=expected)
    size = head_dim(tree.get("d_model"), heads)
    mixers = [
        GlobalAttention(num_heads=heads, head_dim=size, pattern=Sliding(window=window // 2))
        for window in windows
    ]
    tree.repeat_per_mixer("encoder", mixers)


def _write_attention(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the number of heads and `attention_window`.

    `attention_window` has one window per layer, or is a single number if all layers share it.
    """
    assert spec.encoder is not None
    windows = []
    for mixer in spec.encoder.mixers:
        if not isinstance(mixer, GlobalAttention) or not isinstance(mixer.pattern, Sliding):
            raise SpecError("encoder.layers.mixer without global tokens and a sliding window")
        windows.append(2 * mixer.pattern.window)
        config["num_attention_heads"] = mixer.num_heads
    config["attention_window"] = windows[0] if len({*windows}) == 1 else windows


_GLOBAL = {
    f"attention.self.{name}_global": f"mixer.{name}_global" for name in ("query", "key", "value")
}

LONGFORMER = replace(
    ROBERTA,
    model_type="longformer",
    architectures=encoder_classes("Longformer"),
    config={n: field for n, field in ROBERTA.config.items() if n != "num_attention_heads"},
    weights=weight_names({**LAYER, **_GLOBAL}, "longformer", "longformer.encoder.layer.{i}"),
    heads={**ROBERTA.heads, "pooler": {"longformer.pooler.dense": "linear"}},
    base="longformer.",
    ignored=f"{ROBERTA.ignored} onnx_export",
    tied_aliases={
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    hooks=(*ROBERTA.hooks, Hook(_read_attention, _write_attention)),
    is_variant=False,
)
