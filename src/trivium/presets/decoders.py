"""Decoder-only models: GPT-1 to GPT-3, OPT, LLaMA 1 to 3, Mistral."""

from __future__ import annotations

from typing import Literal

from trivium import spec
from trivium.presets.preset import Preset


def _gpt(
    num_layers: int,
    d_model: int,
    num_heads: int,
    *,
    vocab_size: int,
    max_length: int,
    activation: spec.Activation = "gelu_tanh",
    norm_order: Literal["pre", "post"] = "pre",
    patterns: tuple[spec.Pattern, ...] = (spec.Full(),),
    initialization: spec.Normal | None = None,
    offset: int = 0,
    factorised: spec.Factorised | None = None,
    dropout: float = 0.1,
) -> spec.ModelSpec:
    """A decoder with learned positions, LayerNorm and biases: GPT-1 to GPT-3 and OPT."""
    head_dim = d_model // num_heads
    first, *others = (
        spec.Attention(num_heads=num_heads, head_dim=head_dim, pattern=pattern)
        for pattern in patterns
    )
    return spec.ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=spec.Embedding(
            factorised=factorised, positions=spec.Learned(max_length=max_length, offset=offset)
        ),
        decoder=spec.Stack(
            num_layers=num_layers,
            attention=(first, *others) if others else first,
            feed_forward=spec.FeedForward(d_ff=4 * d_model, activation=activation),
            norm=spec.LayerNorm(),
            norm_order=norm_order,
            dropout=dropout,
        ),
        heads=(spec.LMHead(tied=True),),
        initialization=initialization or spec.Normal(residual_init="scaled"),
    )


def _gpt1(num_layers: int, d_model: int) -> Preset:
    model = _gpt(
        num_layers,
        d_model,
        d_model // 64,
        vocab_size=40_478,
        max_length=512,
        norm_order="post",
        initialization=spec.Normal(),
    )
    return Preset(model, "Radford et al. 2018 (GPT)", 512)


def _gpt2(num_layers: int, d_model: int) -> Preset:
    model = _gpt(num_layers, d_model, d_model // 64, vocab_size=50_257, max_length=1024)
    return Preset(model, "Radford et al. 2019 (GPT-2)", 1024)


def _gpt3(num_layers: int, d_model: int, num_heads: int, tokens: float | None = 300e9) -> Preset:
    """Dense and locally banded layers alternate.

    The paper does not give the width of the bands: 256 positions here, as in GPT-Neo. Its table
    2.1 gives XL 24 heads and 13B a width of 5140, neither of which fits the totals of its table
    D.1: those of 16 heads and of 5120 do.
    """
    model = _gpt(
        num_layers,
        d_model,
        num_heads,
        vocab_size=50_257,
        max_length=2048,
        patterns=(spec.Full(), spec.Sliding(window=255)),
        dropout=0.0,
    )
    return Preset(model, "Brown et al. 2020 (GPT-3)", 2048, tokens)


def _opt(
    num_layers: int,
    d_model: int,
    num_heads: int,
    tokens: float | None = 180e9,
    *,
    norm_order: Literal["pre", "post"] = "pre",
    factorised: spec.Factorised | None = None,
) -> Preset:
    model = _gpt(
        num_layers,
        d_model,
        num_heads,
        vocab_size=50_272,
        max_length=2048,
        activation="relu",
        initialization=spec.Normal(std=0.006, embedding_std=0.006, residual_init="scaled"),
        offset=2,
        norm_order=norm_order,
        factorised=factorised,
    )
    return Preset(model, "Zhang et al. 2022 (OPT)", 2048, tokens)


def _decoder(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    *,
    num_kv_heads: int | None = None,
    eps: float = 1e-5,
    vocab_size: int = 32_000,
    positions: spec.Rotary | None = None,
    pattern: spec.Pattern | None = None,
    tied: bool = False,
) -> spec.ModelSpec:
    """A decoder with rotary positions, RMSNorm and SwiGLU: LLaMA and Mistral."""
    return spec.ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=num_layers,
            attention=spec.Attention(
                num_heads=num_heads,
                head_dim=d_model // num_heads,
                num_kv_heads=num_kv_heads,
                bias=False,
                positions=positions or spec.Rotary(),
                pattern=pattern or spec.Full(),
            ),
            feed_forward=spec.FeedForward(d_ff=d_ff, activation="silu", gated=True, bias=False),
            norm=spec.RMSNorm(eps=eps),
            norm_order="pre",
        ),
        heads=(spec.LMHead(tied=tied),),
        initialization=spec.Normal(residual_init="scaled"),
    )


def _llama(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    tokens: float | None = None,
    *,
    num_kv_heads: int | None = None,
    eps: float = 1e-6,
) -> Preset:
    sizes = num_layers, d_model, num_heads, d_ff
    model = _decoder(*sizes, num_kv_heads=num_kv_heads, eps=eps)
    return Preset(model, "Touvron et al. 2023 (LLaMA)", 2048, tokens)


def _llama2(
    num_layers: int, d_model: int, num_heads: int, d_ff: int, num_kv_heads: int | None = None
) -> Preset:
    model = _decoder(num_layers, d_model, num_heads, d_ff, num_kv_heads=num_kv_heads)
    return Preset(model, "Touvron et al. 2023 (Llama 2)", 4096, 2e12)


def _llama3(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    tokens: float = 15e12,
    *,
    factor: float | None = None,
    tied: bool = False,
    paper: str = "Grattafiori et al. 2024 (Llama 3)",
) -> Preset:
    """`factor` divides the slow rotary frequencies, from version 3.1 on."""
    scaling = spec.Llama3Scaling(factor=factor) if factor else None
    model = _decoder(
        num_layers,
        d_model,
        num_heads,
        d_ff,
        num_kv_heads=8,
        vocab_size=128_256,
        positions=spec.Rotary(base=500_000.0, scaling=scaling),
        tied=tied,
    )
    return Preset(model, paper, 131_072 if factor else 8192, tokens)


def _mistral(
    num_layers: int, d_model: int, num_heads: int, d_ff: int, *, num_kv_heads: int, window: int
) -> Preset:
    """`window` counts a position itself."""
    sizes = num_layers, d_model, num_heads, d_ff
    model = _decoder(*sizes, num_kv_heads=num_kv_heads, pattern=spec.Sliding(window=window - 1))
    return Preset(model, "Jiang et al. 2023 (Mistral 7B)", 8192)


_LLAMA32 = "Meta 2024 (Llama 3.2, model card)"

DECODERS: dict[str, Preset] = {
    "gpt1-tiny": _gpt1(2, 128),
    "gpt1-mini": _gpt1(4, 256),
    "gpt1": _gpt1(12, 768),
    "gpt2-tiny": _gpt2(2, 128),
    "gpt2-mini": _gpt2(4, 256),
    "gpt2-small": _gpt2(6, 512),
    "gpt2": _gpt2(12, 768),
    "gpt2-medium": _gpt2(24, 1024),
    "gpt2-large": _gpt2(36, 1280),
    "gpt2-xl": _gpt2(48, 1600),
    "gpt3-tiny": _gpt3(2, 128, 2, None),
    "gpt3-mini": _gpt3(4, 256, 4, None),
    "gpt3-125m": _gpt3(12, 768, 12),
    "gpt3-350m": _gpt3(24, 1024, 16),
    "gpt3-760m": _gpt3(24, 1536, 16),
    "gpt3-1.3b": _gpt3(24, 2048, 16),
    "gpt3-2.7b": _gpt3(32, 2560, 32),
    "gpt3-6.7b": _gpt3(32, 4096, 32),
    "gpt3-13b": _gpt3(40, 5120, 40),
    "gpt3-175b": _gpt3(96, 12_288, 96),
    "opt-tiny": _opt(2, 128, 2, None),
    "opt-mini": _opt(4, 256, 4, None),
    "opt-125m": _opt(12, 768, 12),
    # Unlike its siblings: post-norm, with token vectors half as wide as the model.
    "opt-350m": _opt(
        24,
        1024,
        16,
        norm_order="post",
        factorised=spec.Factorised(width=512, bias=False, projected="tokens"),
    ),
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-2.7b": _opt(32, 2560, 32),
    "opt-6.7b": _opt(32, 4096, 32),
    "opt-13b": _opt(40, 5120, 40),
    "opt-30b": _opt(48, 7168, 56),
    "opt-66b": _opt(64, 9216, 72),
    "opt-175b": _opt(96, 12_288, 96),
    "llama-tiny": _llama(2, 128, 4, 344, num_kv_heads=2),
    "llama-mini": _llama(4, 256, 4, 688, num_kv_heads=2),
    "llama-small": _llama(8, 512, 8, 1376, num_kv_heads=4),
    "llama-7b": _llama(32, 4096, 32, 11_008, 1.0e12),
    "llama-13b": _llama(40, 5120, 40, 13_824, 1.0e12),
    "llama-33b": _llama(60, 6656, 52, 17_920, 1.4e12),
    "llama-65b": _llama(80, 8192, 64, 22_016, 1.4e12, eps=1e-5),
    "llama2-7b": _llama2(32, 4096, 32, 11_008),
    "llama2-13b": _llama2(40, 5120, 40, 13_824),
    "llama2-70b": _llama2(80, 8192, 64, 28_672, num_kv_heads=8),
    "llama3-8b": _llama3(32, 4096, 32, 14_336),
    "llama3-70b": _llama3(80, 8192, 64, 28_672),
    "llama3.1-8b": _llama3(32, 4096, 32, 14_336, factor=8.0),
    "llama3.1-405b": _llama3(126, 16_384, 128, 53_248, 15.6e12, factor=8.0),
    "llama3.2-1b": _llama3(16, 2048, 32, 8192, 9e12, factor=32.0, tied=True, paper=_LLAMA32),
    "llama3.2-3b": _llama3(28, 3072, 24, 8192, 9e12, factor=32.0, tied=True, paper=_LLAMA32),
    "mistral-tiny": _mistral(2, 128, 4, 448, num_kv_heads=2, window=64),
    "mistral-mini": _mistral(4, 256, 4, 896, num_kv_heads=2, window=64),
    "mistral-7b": _mistral(32, 4096, 32, 14_336, num_kv_heads=8, window=4096),
}
