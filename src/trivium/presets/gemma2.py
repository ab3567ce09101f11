"""Gemma 2."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.stack import Embedding
from trivium.nn.feed_forwards.feed_forward import FeedForward
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import RMSNorm
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import Rotary
from trivium.presets.preset import Preset, decoder


def _gemma2(
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    *,
    head_dim: int = 256,
    scale: float | None = None,
    window: int = 4095,
    **published: float,
) -> Preset:
    """Sandwich norms, soft caps, a window in every second layer (tables 1 and 2).

    Windows do not count the position itself here. The paper counts 256,128 token vectors; the
    released models have 256,000.
    """
    full = Attention(
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        bias=False,
        scale=scale,
        soft_cap=50.0,
        positions=Rotary(),
    )
    model = decoder(
        num_layers,
        d_model,
        vocab_size=256_000,
        embedding=Embedding(scale=d_model**0.5),
        mixer=(full.replace(pattern=Sliding(window=window)), full),
        feed_forward=FeedForward(d_ff=d_ff, activation="gelu_tanh", gated=True, bias=False),
        norm=RMSNorm(offset=1),
        norm_placement="sandwich",
        head=LMHead(tied=True, soft_cap=30.0),
    )
    return Preset(model, "Gemma Team 2024 (Gemma 2)", 8192, **published)


PRESETS: dict[str, Preset] = {
    "gemma2-tiny": _gemma2(2, 128, 4, 2, 512, head_dim=32, window=63),
    "gemma2-mini": _gemma2(4, 256, 4, 2, 1024, head_dim=64, window=63),
    "gemma2-2b": _gemma2(26, 2304, 8, 4, 9216, tokens=2e12),
    "gemma2-9b": _gemma2(42, 3584, 16, 8, 14_336, tokens=8e12),
    # Its scores are divided by the root of d_model / num_heads.
    "gemma2-27b": _gemma2(46, 4608, 32, 16, 36_864, head_dim=128, scale=144**-0.5, tokens=13e12),
}
