"""Decoder-only models: the GPT and LLaMA families, OPT and Mistral."""

from __future__ import annotations

from typing import Literal

from trivium.presets.preset import Preset, Training
from trivium.spec import (
    Activation,
    Attention,
    Embedding,
    Factorised,
    FeedForward,
    Full,
    LayerNorm,
    Learned,
    Llama3Scaling,
    LMHead,
    ModelSpec,
    Normal,
    Pattern,
    RMSNorm,
    Rotary,
    Sliding,
    Stack,
)

_FULL, _ROTARY = Full(), Rotary()


def _learned_positions(
    num_layers: int,
    d_model: int,
    *,
    num_heads: int,
    vocab_size: int,
    max_length: int,
    activation: Activation,
    initialization: Normal,
    norm_order: Literal["pre", "post"] = "pre",
    patterns: tuple[Pattern, ...] = (_FULL,),
    position_offset: int = 0,
    factorised: Factorised | None = None,
    dropout: float = 0.1,
) -> ModelSpec:
    """A decoder with learned positions, LayerNorm and biases everywhere."""
    first, *others = (
        Attention(num_heads=num_heads, head_dim=d_model // num_heads, pattern=pattern)
        for pattern in patterns
    )
    return ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=Embedding(
            factorised=factorised, positions=Learned(max_length=max_length, offset=position_offset)
        ),
        decoder=Stack(
            num_layers=num_layers,
            attention=(first, *others) if others else first,
            feed_forward=FeedForward(d_ff=4 * d_model, activation=activation),
            norm=LayerNorm(),
            norm_order=norm_order,
            dropout=dropout,
        ),
        heads=(LMHead(tied=True),),
        initialization=initialization,
    )


def _gpt1(num_layers: int, d_model: int) -> Preset:
    spec = _learned_positions(
        num_layers,
        d_model,
        num_heads=d_model // 64,
        vocab_size=40_478,
        max_length=512,
        activation="gelu_tanh",
        initialization=Normal(),
        norm_order="post",
    )
    return Preset(spec, "Radford et al. 2018 (GPT)", 512)


def _gpt2(num_layers: int, d_model: int) -> Preset:
    spec = _learned_positions(
        num_layers,
        d_model,
        num_heads=d_model // 64,
        vocab_size=50_257,
        max_length=1024,
        activation="gelu_tanh",
        initialization=Normal(branches="scaled"),
    )
    return Preset(spec, "Radford et al. 2019 (GPT-2)", 1024)


def _gpt3(
    num_layers: int, d_model: int, num_heads: int, training: Training | None = None
) -> Preset:
    """Dense and locally banded layers in turn.

    The paper does not say how wide the bands are: 256 positions, as GPT-Neo has them. Its table
    2.1 gives XL 24 heads and 13B a width of 5140, neither of which fits the totals of its table
    D.1: those of 16 heads and of 5120 do.
    """
    spec = _learned_positions(
        num_layers,
        d_model,
        num_heads=num_heads,
        vocab_size=50_257,
        max_length=2048,
        activation="gelu_tanh",
        initialization=Normal(branches="scaled"),
        patterns=(_FULL, Sliding(window=255)),
        dropout=0.0,
    )
    return Preset(spec, "Brown et al. 2020 (GPT-3)", 2048, training)


def _opt(
    num_layers: int,
    d_model: int,
    num_heads: int,
    training: Training | None = None,
    *,
    norm_order: Literal["pre", "post"] = "pre",
    d_embedding: int | None = None,
) -> Preset:
    narrow = Factorised(width=d_embedding, bias=False, projected="tokens") if d_embedding else None
    spec = _learned_positions(
        num_layers,
        d_model,
        num_heads=num_heads,
        vocab_size=50_272,
        max_length=2048,
        activation="relu",
        initialization=Normal(std=0.006, embedding_std=0.006, branches="scaled"),
        norm_order=norm_order,
        position_offset=2,
        factorised=narrow,
    )
    return Preset(spec, "Zhang et al. 2022 (OPT)", 2048, training)


def _llama(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    training: Training | None = None,
    *,
    num_kv_heads: int | None = None,
    eps: float = 1e-6,
    vocab_size: int = 32_000,
    positions: Rotary = _ROTARY,
    pattern: Pattern = _FULL,
    tied: bool = False,
    context: int = 2048,
    paper: str = "Touvron et al. 2023 (LLaMA)",
) -> Preset:
    spec = ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=Embedding(),
        decoder=Stack(
            num_layers=num_layers,
            attention=Attention(
                num_heads=num_heads,
                head_dim=d_model // num_heads,
                num_kv_heads=num_kv_heads,
                bias=False,
                positions=positions,
                pattern=pattern,
            ),
            feed_forward=FeedForward(d_ff=d_ff, activation="silu", gated=True, bias=False),
            norm=RMSNorm(eps=eps),
            norm_order="pre",
        ),
        heads=(LMHead(tied=tied),),
        initialization=Normal(branches="scaled"),
    )
    return Preset(spec, paper, context, training)


def _llama2(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    lr: float | None = None,
    *,
    num_kv_heads: int | None = None,
) -> Preset:
    return _llama(
        num_layers,
        d_model,
        num_heads,
        d_ff,
        Training(tokens=2e12, lr=lr, batch_tokens=4e6) if lr else None,
        num_kv_heads=num_kv_heads,
        eps=1e-5,
        context=4096,
        paper="Touvron et al. 2023 (Llama 2)",
    )


def _llama3(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    training: Training | None = None,
    *,
    num_kv_heads: int = 8,
    stretched: float | None = None,
    tied: bool = False,
    paper: str = "Grattafiori et al. 2024 (Llama 3)",
) -> Preset:
    """`stretched`: by what the slow rotary frequencies are divided, from version 3.1 on."""
    scaling = Llama3Scaling(factor=stretched) if stretched else None
    return _llama(
        num_layers,
        d_model,
        num_heads,
        d_ff,
        training,
        num_kv_heads=num_kv_heads,
        eps=1e-5,
        vocab_size=128_256,
        positions=Rotary(base=500_000.0, scaling=scaling),
        tied=tied,
        context=131_072 if stretched else 8192,
        paper=paper,
    )


def _mistral(
    num_layers: int, d_model: int, num_heads: int, d_ff: int, *, num_kv_heads: int, window: int
) -> Preset:
    """`window` counts a position itself."""
    return _llama(
        num_layers,
        d_model,
        num_heads,
        d_ff,
        num_kv_heads=num_kv_heads,
        eps=1e-5,
        pattern=Sliding(window=window - 1),
        context=8192,
        paper="Jiang et al. 2023 (Mistral 7B)",
    )


def _gpt3_training(batch_tokens: float, lr: float) -> Training:
    """A row of table 2.1 of the GPT-3 paper."""
    return Training(tokens=300e9, lr=lr, batch_tokens=batch_tokens)


def _opt_training(batch_tokens: float, lr: float) -> Training:
    """A row of table 1 of the OPT paper."""
    return Training(tokens=180e9, lr=lr, batch_tokens=batch_tokens)


# Table 2 of the LLaMA paper.
_LLAMA_SMALL = Training(tokens=1.0e12, lr=3e-4, batch_tokens=4e6)
_LLAMA_LARGE = Training(tokens=1.4e12, lr=1.5e-4, batch_tokens=4e6)
# Table 3 of the Llama 3 paper.
_LLAMA3_8B = Training(tokens=15e12, lr=3e-4)
_LLAMA3_70B = Training(tokens=15e12, lr=1.5e-4)
_LLAMA3_405B = Training(tokens=15.6e12, lr=8e-5)
_LLAMA32 = Training(tokens=9e12)
_LLAMA32_PAPER = "Meta 2024 (Llama 3.2, model card)"

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
    "gpt3-tiny": _gpt3(2, 128, 2),
    "gpt3-mini": _gpt3(4, 256, 4),
    "gpt3-125m": _gpt3(12, 768, 12, _gpt3_training(0.5e6, 6e-4)),
    "gpt3-350m": _gpt3(24, 1024, 16, _gpt3_training(0.5e6, 3e-4)),
    "gpt3-760m": _gpt3(24, 1536, 16, _gpt3_training(0.5e6, 2.5e-4)),
    "gpt3-1.3b": _gpt3(24, 2048, 16, _gpt3_training(1e6, 2e-4)),
    "gpt3-2.7b": _gpt3(32, 2560, 32, _gpt3_training(1e6, 1.6e-4)),
    "gpt3-6.7b": _gpt3(32, 4096, 32, _gpt3_training(2e6, 1.2e-4)),
    "gpt3-13b": _gpt3(40, 5120, 40, _gpt3_training(2e6, 1e-4)),
    "gpt3-175b": _gpt3(96, 12_288, 96, _gpt3_training(3.2e6, 6e-5)),
    "opt-tiny": _opt(2, 128, 2),
    "opt-mini": _opt(4, 256, 4),
    "opt-125m": _opt(12, 768, 12, _opt_training(0.5e6, 6e-4)),
    # Unlike its siblings: post-norm, with token vectors half as wide as the model.
    "opt-350m": _opt(24, 1024, 16, _opt_training(0.5e6, 3e-4), norm_order="post", d_embedding=512),
    "opt-1.3b": _opt(24, 2048, 32, _opt_training(1e6, 2e-4)),
    "opt-2.7b": _opt(32, 2560, 32, _opt_training(1e6, 1.6e-4)),
    "opt-6.7b": _opt(32, 4096, 32, _opt_training(2e6, 1.2e-4)),
    "opt-13b": _opt(40, 5120, 40, _opt_training(4e6, 1e-4)),
    "opt-30b": _opt(48, 7168, 56, _opt_training(4e6, 1e-4)),
    "opt-66b": _opt(64, 9216, 72, _opt_training(2e6, 8e-5)),
    "opt-175b": _opt(96, 12_288, 96, _opt_training(2e6, 1.2e-4)),
    "llama-tiny": _llama(2, 128, 4, 344, num_kv_heads=2),
    "llama-mini": _llama(4, 256, 4, 688, num_kv_heads=2),
    "llama-small": _llama(8, 512, 8, 1376, num_kv_heads=4),
    "llama-7b": _llama(32, 4096, 32, 11_008, _LLAMA_SMALL),
    "llama-13b": _llama(40, 5120, 40, 13_824, _LLAMA_SMALL),
    "llama-33b": _llama(60, 6656, 52, 17_920, _LLAMA_LARGE),
    "llama-65b": _llama(80, 8192, 64, 22_016, _LLAMA_LARGE, eps=1e-5),
    "llama2-tiny": _llama2(2, 128, 4, 344),
    "llama2-mini": _llama2(4, 256, 4, 688),
    "llama2-7b": _llama2(32, 4096, 32, 11_008, 3e-4),
    "llama2-13b": _llama2(40, 5120, 40, 13_824, 3e-4),
    "llama2-70b": _llama2(80, 8192, 64, 28_672, 1.5e-4, num_kv_heads=8),
    "llama3-tiny": _llama3(2, 128, 4, 448, num_kv_heads=2),
    "llama3-mini": _llama3(4, 256, 4, 896, num_kv_heads=2),
    "llama3-8b": _llama3(32, 4096, 32, 14_336, _LLAMA3_8B),
    "llama3-70b": _llama3(80, 8192, 64, 28_672, _LLAMA3_70B),
    "llama3.1-8b": _llama3(32, 4096, 32, 14_336, _LLAMA3_8B, stretched=8.0),
    "llama3.1-70b": _llama3(80, 8192, 64, 28_672, _LLAMA3_70B, stretched=8.0),
    "llama3.1-405b": _llama3(126, 16_384, 128, 53_248, _LLAMA3_405B, stretched=8.0),
    "llama3.2-1b": _llama3(
        16, 2048, 32, 8192, _LLAMA32, stretched=32.0, tied=True, paper=_LLAMA32_PAPER
    ),
    "llama3.2-3b": _llama3(
        28, 3072, 24, 8192, _LLAMA32, stretched=32.0, tied=True, paper=_LLAMA32_PAPER
    ),
    "mistral-tiny": _mistral(2, 128, 4, 448, num_kv_heads=2, window=64),
    "mistral-mini": _mistral(4, 256, 4, 896, num_kv_heads=2, window=64),
    "mistral-7b": _mistral(32, 4096, 32, 14_336, num_kv_heads=8, window=4096),
}
