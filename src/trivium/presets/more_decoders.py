"""Decoder-only models: Jurassic-1, GPT-NeoX and Pythia, PaLM, BLOOM, Gemma 2, Qwen2 and Qwen3."""

from __future__ import annotations

from functools import partial

from trivium import spec
from trivium.presets.preset import Preset

_SCALED = spec.Normal(residual_init="scaled")


def _jurassic(num_layers: int, d_model: int, num_heads: int, **published: float) -> Preset:
    """GPT-3 with dense layers alone, wider and less deep, and a larger vocabulary."""
    model = spec.ModelSpec(
        vocab_size=256_000,
        d_model=d_model,
        embedding=spec.Embedding(positions=spec.Learned(max_length=2048)),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=spec.Attention(num_heads=num_heads, head_dim=d_model // num_heads),
            feed_forward=spec.FeedForward(d_ff=4 * d_model, activation="gelu_tanh"),
            norm=spec.LayerNorm(),
            norms=spec.PRE_NORM,
        ),
        heads=(spec.LMHead(tied=True),),
        initialization=_SCALED,
    )
    return Preset(model, "Lieber et al. 2021 (Jurassic-1)", 2048, **published)


def _bloom(num_layers: int, d_model: int, num_heads: int, **published: float) -> Preset:
    """ALiBi, and a norm of the token vectors."""
    model = spec.ModelSpec(
        vocab_size=250_880,
        d_model=d_model,
        embedding=spec.Embedding(norm=spec.LayerNorm()),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=spec.Attention(
                num_heads=num_heads, head_dim=d_model // num_heads, positions=spec.ALiBi()
            ),
            feed_forward=spec.FeedForward(d_ff=4 * d_model, activation="gelu_tanh"),
            norm=spec.LayerNorm(),
            norms=spec.PRE_NORM,
        ),
        heads=(spec.LMHead(tied=True),),
        initialization=_SCALED,
    )
    return Preset(model, "Le Scao et al. 2022 (BLOOM)", 2048, **published)


def _neox(
    num_layers: int,
    d_model: int,
    num_heads: int,
    *,
    paper: str = "Biderman et al. 2023 (Pythia)",
    vocab_size: int = 50_304,
    activation: spec.Activation = "gelu",
    **published: float,
) -> Preset:
    """Parallel blocks with two norms, rotary positions of a quarter of every head, untied."""
    model = spec.ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=spec.Attention(
                num_heads=num_heads,
                head_dim=d_model // num_heads,
                positions=spec.Rotary(share=0.25),
            ),
            feed_forward=spec.FeedForward(d_ff=4 * d_model, activation=activation),
            norm=spec.LayerNorm(),
            norms=spec.PRE_NORM,
            block=spec.ParallelLayers(norms="separate"),
        ),
        heads=(spec.LMHead(tied=False),),
        initialization=_SCALED,
    )
    return Preset(model, paper, 2048, **published)


def _palm(
    num_layers: int, d_model: int, num_heads: int, head_dim: int = 256, **published: float
) -> Preset:
    """Parallel blocks with one norm, one key-value head, SwiGLU, no biases."""
    model = spec.ModelSpec(
        vocab_size=256_000,
        d_model=d_model,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=spec.Attention(
                num_heads=num_heads,
                head_dim=head_dim,
                num_kv_heads=1,
                bias=False,
                positions=spec.Rotary(),
            ),
            feed_forward=spec.FeedForward(
                d_ff=4 * d_model, activation="silu", gated=True, bias=False
            ),
            norm=spec.LayerNorm(bias=False),
            norms=spec.PRE_NORM,
            block=spec.ParallelLayers(norms="shared"),
        ),
        heads=(spec.LMHead(tied=True, scale=d_model**-0.5),),
        initialization=spec.FanIn(),
    )
    return Preset(model, "Chowdhery et al. 2022 (PaLM)", 2048, **published)


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
    """Sandwich norms, soft caps, a window in every second layer. Windows do not count the position
    itself here."""
    full = spec.Attention(
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        bias=False,
        scale=scale,
        soft_cap=50.0,
        positions=spec.Rotary(),
    )
    model = spec.ModelSpec(
        vocab_size=256_000,
        d_model=d_model,
        embedding=spec.Embedding(scale=d_model**0.5),
        decoder=spec.Stack(
            num_layers=num_layers,
            mixer=(full.replace(pattern=spec.Sliding(window=window)), full),
            feed_forward=spec.FeedForward(
                d_ff=d_ff, activation="gelu_tanh", gated=True, bias=False
            ),
            norm=spec.RMSNorm(offset=1),
            norms=("before", "branch"),
        ),
        heads=(spec.LMHead(tied=True, soft_cap=30.0),),
        initialization=_SCALED,
    )
    return Preset(model, "Gemma Team 2024 (Gemma 2)", 8192, **published)


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
    """LLaMA's parts, with what `attention` adds to its attention."""
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
_pythia = partial(_neox, tokens=300e9, batch=1024 * 2048)

PRESETS: dict[str, Preset] = {
    "jurassic1-tiny": _jurassic(2, 128, 2),
    "jurassic1-mini": _jurassic(4, 256, 4),
    "jurassic1-large": _jurassic(32, 4096, 32, tokens=300e9, lr=1.2e-4, batch=2e6),
    "jurassic1-jumbo": _jurassic(76, 13_824, 96, tokens=300e9, lr=0.6e-4, batch=3.2e6),
    "gpt-neox-20b": _neox(
        44,
        6144,
        64,
        paper="Black et al. 2022 (GPT-NeoX-20B)",
        vocab_size=50_432,
        activation="gelu_tanh",
        lr=0.97e-4,
        batch=1538 * 2048,
    ),
    "pythia-tiny": _neox(2, 128, 2),
    "pythia-mini": _neox(4, 256, 4),
    "pythia-70m": _pythia(6, 512, 8, lr=1e-3),
    "pythia-160m": _pythia(12, 768, 12, lr=6e-4),
    "pythia-410m": _pythia(24, 1024, 16, lr=3e-4),
    "pythia-1b": _pythia(16, 2048, 8, lr=3e-4),
    "pythia-1.4b": _pythia(24, 2048, 16, lr=2e-4),
    "pythia-2.8b": _pythia(32, 2560, 32, lr=1.6e-4),
    # More processes of training padded the vocabulary further.
    "pythia-6.9b": _pythia(32, 4096, 32, vocab_size=50_432, lr=1.2e-4),
    "pythia-12b": _pythia(36, 5120, 40, vocab_size=50_688, lr=1.2e-4),
    "palm-tiny": _palm(2, 128, 2, 64),
    "palm-mini": _palm(4, 256, 4, 64),
    "palm-8b": _palm(32, 4096, 16, tokens=780e9, batch=2048 * 2048),
    "palm-62b": _palm(64, 8192, 32, tokens=795e9, batch=2048 * 2048),
    "palm-540b": _palm(118, 18_432, 48, tokens=780e9, batch=2048 * 2048),
    "bloom-tiny": _bloom(2, 128, 2),
    "bloom-mini": _bloom(4, 256, 4),
    "bloom-560m": _bloom(24, 1024, 16, tokens=341e9, lr=3e-4, batch=256 * 2048),
    "bloom-1.1b": _bloom(24, 1536, 16, tokens=341e9, lr=2.5e-4, batch=256 * 2048),
    "bloom-1.7b": _bloom(24, 2048, 16, tokens=341e9, lr=2e-4, batch=512 * 2048),
    "bloom-3b": _bloom(30, 2560, 32, tokens=341e9, lr=1.6e-4, batch=512 * 2048),
    "bloom-7.1b": _bloom(30, 4096, 32, tokens=341e9, lr=1.2e-4, batch=512 * 2048),
    "bloom-176b": _bloom(70, 14_336, 112, tokens=366e9, lr=6e-5, batch=2048 * 2048),
    "gemma2-tiny": _gemma2(2, 128, 4, 2, 512, head_dim=32, window=63),
    "gemma2-mini": _gemma2(4, 256, 4, 2, 1024, head_dim=64, window=63),
    "gemma2-2b": _gemma2(26, 2304, 8, 4, 9216, tokens=2e12),
    "gemma2-9b": _gemma2(42, 3584, 16, 8, 14_336, tokens=8e12),
    # Its scores are divided by the root of d_model / num_heads.
    "gemma2-27b": _gemma2(46, 4608, 32, 16, 36_864, head_dim=128, scale=144**-0.5, tokens=13e12),
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
