"""Decoders with mixtures of experts: Mixtral."""

from __future__ import annotations

from functools import partial

from trivium import spec
from trivium.presets.preset import Preset
from trivium.spec.feed_forwards.experts import Experts


def _mixtral(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    *,
    num_kv_heads: int = 8,
    balance: float = 0.02,
    paper: str = "Jiang et al. 2024 (Mixtral of experts)",
    context: int = 32_768,
) -> Preset:
    """Mistral with eight experts, of which a token takes two, and without a window.

    `balance` is that of the released configurations; no paper says it.
    """
    model = spec.ModelSpec(
        vocab_size=32_000,
        d_model=d_model,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=spec.Attention(
                num_heads=num_heads,
                head_dim=d_model // num_heads,
                num_kv_heads=num_kv_heads,
                bias=False,
                positions=spec.Rotary(base=1e6),
            ),
            feed_forward=Experts(
                num_experts=8,
                expert=spec.FeedForward(d_ff=d_ff, activation="silu", gated=True, bias=False),
                balance=balance,
            ),
            norm=spec.RMSNorm(eps=1e-5),
            norms=spec.PRE_NORM,
        ),
        heads=(spec.LMHead(tied=False),),
        initialization=spec.Normal(residual_init="scaled"),
    )
    return Preset(model, paper, context)


_small = partial(_mixtral, num_kv_heads=2)

PRESETS: dict[str, Preset] = {
    "mixtral-tiny": _small(2, 128, 4, 224),
    "mixtral-mini": _small(4, 256, 4, 448),
    "mixtral-8x7b": _mixtral(32, 4096, 32, 14_336),
    "mixtral-8x22b": _mixtral(
        56,
        6144,
        48,
        16_384,
        balance=0.001,
        paper="Mistral AI 2024 (Mixtral 8x22B, release)",
        context=65_536,
    ),
}
