"""Longformer: encoders with sliding-window attention and global tokens, for long sequences."""

from __future__ import annotations

from typing import Any

from trivium.nn.mixers.global_attention import GlobalAttention
from trivium.nn.patterns import Sliding
from trivium.presets.encoders import roberta
from trivium.presets.preset import Preset


def _longformer(
    num_layers: int,
    d_model: int,
    *,
    window: int = 256,
    paper: str = "Beltagy et al. 2020 (Longformer)",
    **published: Any,
) -> Preset:
    """Return a Longformer preset: RoBERTa for sequences of 4,096 tokens.

    A token attends to `window` tokens on each side and to the global tokens.
    """
    return roberta(
        num_layers,
        d_model,
        paper=paper,
        mixer=GlobalAttention(num_heads=d_model // 64, head_dim=64, pattern=Sliding(window=window)),
        max_length=4096,
        **published,
    )


# Continued pretraining of RoBERTa (section 5): 64 rows of 4096 tokens, 65 thousand steps.
_CONTINUED_TOKENS = 65e3 * 64 * 4096

PRESETS: dict[str, Preset] = {
    "longformer-tiny": _longformer(2, 128, window=32, paper="after Beltagy et al. 2020"),
    "longformer-mini": _longformer(4, 256, window=32, paper="after Beltagy et al. 2020"),
    "longformer-base": _longformer(12, 768, tokens=_CONTINUED_TOKENS),
    "longformer-large": _longformer(24, 1024, tokens=_CONTINUED_TOKENS),
}
