"""Mamba, and Mamba with attention in some layers."""

from __future__ import annotations

import math

from trivium import spec
from trivium.presets.preset import Preset
from trivium.spec.feed_forwards import Positionwise
from trivium.spec.feed_forwards.nothing import NoFeedForward
from trivium.spec.mixers.mamba import Mamba


def _model(
    num_layers: int,
    d_model: int,
    vocab_size: int,
    feed_forward: Positionwise,
    attention: spec.Attention | None = None,
) -> spec.ModelSpec:
    """Pre-norm blocks; the third of every four is attention, if there is one."""
    mamba = Mamba(d_inner=2 * d_model, step_rank=math.ceil(d_model / 16))
    return spec.ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=(mamba, mamba, attention, mamba) if attention else mamba,
            feed_forward=feed_forward,
            norm=spec.RMSNorm(eps=1e-6 if attention else 1e-5),
            norms=spec.PRE_NORM,
        ),
        heads=(spec.LMHead(tied=attention is None),),
        initialization=spec.Normal(residual_init="scaled"),
    )


def _mamba(num_layers: int, d_model: int, **published: float) -> Preset:
    model = _model(num_layers, d_model, 50_280, NoFeedForward())
    return Preset(model, "Gu and Dao 2023 (Mamba)", 2048, **published)


def _jamba(num_layers: int, d_model: int, num_heads: int) -> Preset:
    """Without experts and inner norms; attention has no positions (section 6.5)."""
    head_dim = d_model // num_heads
    attention = spec.Attention(
        num_heads=num_heads, head_dim=head_dim, num_kv_heads=num_heads // 2, bias=False
    )
    network = spec.FeedForward(d_ff=7 * d_model // 2, activation="silu", gated=True, bias=False)
    model = _model(num_layers, d_model, 65_536, network, attention)
    return Preset(model, "after Lieber et al. 2024 (Jamba)", 2048)


PRESETS: dict[str, Preset] = {
    "mamba-tiny": _mamba(2, 128),
    "mamba-mini": _mamba(4, 256),
    "mamba-130m": _mamba(24, 768, tokens=300e9),
    "mamba-370m": _mamba(48, 1024, tokens=300e9),
    "mamba-790m": _mamba(48, 1536, tokens=300e9),
    "mamba-1.4b": _mamba(48, 2048, tokens=300e9),
    "mamba-2.8b": _mamba(64, 2560, tokens=300e9),
    "jamba-mini": _jamba(4, 256, 4),
}
