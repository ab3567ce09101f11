"""Decoders with the relative scores of Transformer-XL, without its memory of earlier segments."""

from __future__ import annotations

from trivium import spec
from trivium.presets.preset import Preset
from trivium.spec.positions.relative_scores import RelativeScores


def _relative(num_layers: int, d_model: int) -> Preset:
    model = spec.ModelSpec(
        vocab_size=50_257,
        d_model=d_model,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=spec.Attention(
                num_heads=d_model // 64, head_dim=64, bias=False, positions=RelativeScores()
            ),
            feed_forward=spec.FeedForward(d_ff=4 * d_model, activation="relu"),
            norm=spec.LayerNorm(),
            norms=spec.PRE_NORM,
        ),
        heads=(spec.LMHead(tied=True),),
        initialization=spec.Normal(residual_init="scaled"),
    )
    return Preset(model, "after Dai et al. 2019 (Transformer-XL)", 1024)


PRESETS: dict[str, Preset] = {
    "relative-tiny": _relative(2, 128),
    "relative-mini": _relative(4, 256),
}
