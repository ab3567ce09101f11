"""Linformer: encoders like RoBERTa whose keys and values are projected to a shorter length."""

from __future__ import annotations

from trivium.nn.mixers.linformer import Linformer
from trivium.presets.encoders import bert
from trivium.presets.preset import GELU_MLM, Preset


def _linformer(num_layers: int, d_model: int, rank: int) -> Preset:
    """Return a Linformer preset: a post-norm encoder whose keys and values have length `rank`.

    All layers share one projection matrix (layerwise sharing, section 4). For sequences of 512
    tokens, the paper uses ranks of 128 and 256 (section 5.1).
    """
    return bert(
        num_layers,
        d_model,
        paper="Wang et al. 2020 (Linformer)",
        heads=(GELU_MLM,),
        mixer=Linformer(num_heads=d_model // 64, head_dim=64, rank=rank, max_length=512),
        vocab_size=50_265,
        num_token_types=0,
        eps=1e-5,
    )


PRESETS: dict[str, Preset] = {
    "linformer-tiny": _linformer(2, 128, 64),
    "linformer-mini": _linformer(4, 256, 64),
    "linformer-base": _linformer(12, 768, 256),
}
