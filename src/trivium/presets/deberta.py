"""DeBERTa v3: encoders whose attention keeps content and position apart."""

from __future__ import annotations

from trivium import spec
from trivium.presets.preset import Preset


def _v3(num_layers: int, d_model: int, *, vocab_size: int = 128_100, **given: float) -> Preset:
    """256 buckets each way for distances up to 512, and no absolute positions in the input."""
    norm = spec.LayerNorm(eps=1e-7)
    model = spec.ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=spec.Embedding(norm=norm),
        encoder=spec.Stack(
            num_layers=num_layers,
            mixer=spec.Attention(
                num_heads=d_model // 64,
                head_dim=64,
                scale=(3 * 64) ** -0.5,
                positions=spec.Disentangled(span=256, max_distance=512, norm=norm),
            ),
            feed_forward=spec.FeedForward(d_ff=4 * d_model, activation="gelu"),
            norm=norm,
            norms=spec.POST_NORM,
            dropout=0.1,
        ),
        heads=(spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True)),),
    )
    return Preset(model, "He et al. 2021 (DeBERTa v3)", 512, **given)


PRESETS: dict[str, Preset] = {
    "deberta-tiny": _v3(2, 128, vocab_size=30_522),
    "deberta-mini": _v3(4, 256, vocab_size=30_522),
    "deberta-v3-xsmall": _v3(12, 384),
    "deberta-v3-small": _v3(6, 768),
    "deberta-v3-base": _v3(12, 768),
    "deberta-v3-large": _v3(24, 1024),
}
