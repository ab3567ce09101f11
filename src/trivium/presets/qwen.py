"""Qwen2 and Qwen3."""

from __future__ import annotations

from functools import partial

from trivium import spec
from trivium.presets.preset import Preset

_SCALED = spec.Normal(residual_init="scaled")


def _qwen(
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    *,
    paper: str,
    attention: spec.Attention,
    head_dim: int = 128,
    tied: bool = True,
    vocab_size: int = 151_936,
    eps: float = 1e-6,
    **published: float,
) -> Preset:
    """LLaMA's parts, with what `attention` adds to its attention.

    Tables have more rows than the 151,646 tokens of Qwen2 and 151,669 of Qwen3, as those released.
    """
    model = spec.ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=attention.replace(
                num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
            ),
            feed_forward=spec.FeedForward(d_ff=d_ff, activation="silu", gated=True, bias=False),
            norm=spec.RMSNorm(eps=eps),
            norms=spec.PRE_NORM,
        ),
        heads=(spec.LMHead(tied=tied),),
        initialization=_SCALED,
    )
    return Preset(model, paper, 32_768, **published)


_QWEN = spec.Attention(
    num_heads=1, head_dim=128, bias=False, positions=spec.Rotary(base=1_000_000.0)
)
_qwen2 = partial(
    _qwen,
    paper="Yang et al. 2024 (Qwen2)",
    attention=_QWEN.replace(bias=True, output_bias=False),
)
_qwen3 = partial(
    _qwen, paper="Yang et al. 2025 (Qwen3)", attention=_QWEN.replace(qk_norm=spec.RMSNorm())
)

PRESETS: dict[str, Preset] = {
    "qwen2-tiny": _qwen2(2, 128, 4, 2, head_dim=32, d_ff=344),
    "qwen2-mini": _qwen2(4, 256, 4, 2, head_dim=64, d_ff=688),
    "qwen2-0.5b": _qwen2(24, 896, 14, 2, 4864, head_dim=64, tokens=12e12),
    "qwen2-1.5b": _qwen2(28, 1536, 12, 2, 8960, tokens=7e12),
    "qwen2-7b": _qwen2(28, 3584, 28, 4, 18_944, tied=False, vocab_size=152_064, tokens=7e12),
    "qwen2-72b": _qwen2(
        80, 8192, 64, 8, 29_568, tied=False, vocab_size=152_064, eps=1e-5, tokens=7e12
    ),
    "qwen3-tiny": _qwen3(2, 128, 4, 2, head_dim=32, d_ff=384),
    "qwen3-mini": _qwen3(4, 256, 4, 2, head_dim=64, d_ff=768),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 8, 3072, tokens=36e12),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 8, 6144, tokens=36e12),
    "qwen3-4b": _qwen3(36, 2560, 32, 8, 9728, tokens=36e12),
    "qwen3-8b": _qwen3(36, 4096, 32, 8, 12_288, tied=False, tokens=36e12),
    "qwen3-14b": _qwen3(40, 5120, 40, 8, 17_408, tied=False, tokens=36e12),
    "qwen3-32b": _qwen3(64, 5120, 64, 8, 25_600, tied=False, tokens=36e12),
}
