"""Linformer: RoBERTa's shape with projected keys and values."""

from __future__ import annotations

from trivium import spec
from trivium.presets.preset import Preset
from trivium.spec.mixers.linformer import Linformer


def _linformer(num_layers: int, d_model: int, rank: int) -> Preset:
    """A post-norm encoder; one projection in all layers (layerwise sharing, section 4).

    The paper reads as many tokens with ranks of 128 and 256 (section 5.1).
    """
    heads = d_model // 64
    model = spec.ModelSpec(
        vocab_size=50_265,
        d_model=d_model,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=512), norm=spec.LayerNorm(eps=1e-5)
        ),
        encoder=spec.Stack(
            num_layers=num_layers,
            mixer=Linformer(num_heads=heads, head_dim=64, rank=rank, max_length=512),
            feed_forward=spec.FeedForward(d_ff=4 * d_model, activation="gelu"),
            norm=spec.LayerNorm(),
            norms=spec.POST_NORM,
            dropout=0.1,
        ),
        heads=(spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True)),),
    )
    return Preset(model, "Wang et al. 2020 (Linformer)", 512)


PRESETS: dict[str, Preset] = {
    "linformer-tiny": _linformer(2, 128, 64),
    "linformer-mini": _linformer(4, 256, 64),
    "linformer-base": _linformer(12, 768, 256),
}
