"""Decoder-only models: GPT-1 to GPT-3, Jurassic-1, OPT, LLaMA 1 to 3, Mistral, OLMo 2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Normal
from trivium.models.stack import Embedding, Factorised
from trivium.nn.activations import Activation
from trivium.nn.blocks import NormPlacement
from trivium.nn.feed_forwards import FeedForward
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import RMSNorm
from trivium.nn.patterns import Pattern, Sliding
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.rotary import Llama3Scaling, Rotary
from trivium.presets.preset import GPT2_INIT, Preset, attention, decoder, swiglu_spec

# Every size sets its own num_heads and head_dim.
ROTARY_ATTENTION = Attention(num_heads=1, head_dim=64, bias=False, positions=Rotary())


def _gpt(
    num_layers: int,
    d_model: int,
    num_heads: int | None = None,
    *,
    paper: str,
    vocab_size: int,
    max_length: int,
    activation: Activation = "gelu_tanh",
    norm_placement: NormPlacement = "pre",
    patterns: tuple[Pattern | None, ...] = (None,),
    initialization: Normal = GPT2_INIT,
    learned: Callable[..., Learned] = Learned,
    factorised: Factorised | None = None,
    dropout: float = 0.1,
    **published: Any,
) -> Preset:
    """Return a preset of a GPT-like decoder: GPT-1 to GPT-3, Jurassic-1 or OPT.

    It has learned position embeddings, LayerNorm, and biases in all linear layers of its blocks. If
    several attention `patterns` are given, the layers use them in turn.
    """
    num_heads = num_heads or d_model // 64
    first, *others = (attention(d_model, num_heads, pattern=pattern) for pattern in patterns)
    model = decoder(
        num_layers,
        d_model,
        vocab_size=vocab_size,
        embedding=Embedding(factorised=factorised, positions=learned(max_length=max_length)),
        mixer=(first, *others) if others else first,
        feed_forward=MLP(d_ff=4 * d_model, activation=activation),
        norm_placement=norm_placement,
        dropout=dropout,
        initialization=initialization,
    )
    return Preset(model, paper, max_length, **published)


def llama(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    *,
    paper: str = "Touvron et al. 2023 (LLaMA)",
    context: int | None = 2048,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    eps: float = 1e-5,
    vocab_size: int = 32_000,
    attention: Attention = ROTARY_ATTENTION,
    feed_forward: FeedForward | None = None,
    norm_placement: NormPlacement = "pre",
    tied: bool = False,
    initialization: Normal = GPT2_INIT,
    **published: Any,
) -> Preset:
    """Return a preset of a LLaMA-like decoder: LLaMA, Mistral, Mixtral, Qwen or OLMo 2.

    It has RoPE, RMSNorm and SwiGLU. `attention` contains the attention settings that do not depend
    on the model size. `feed_forward` replaces the SwiGLU network of width `d_ff`.
    """
    model = decoder(
        num_layers,
        d_model,
        vocab_size=vocab_size,
        mixer=attention.replace(
            num_heads=num_heads,
            head_dim=head_dim or d_model // num_heads,
            num_kv_heads=num_kv_heads,
        ),
        feed_forward=feed_forward or swiglu_spec(d_ff),
        norm=RMSNorm(eps=eps),
        norm_placement=norm_placement,
        head=LMHead(tied=tied),
        initialization=initialization,
    )
    return Preset(model, paper, context, **published)


_gpt1 = partial(
    _gpt,
    paper="Radford et al. 2018 (GPT)",
    vocab_size=40_478,
    max_length=512,
    norm_placement="post",
    initialization=Normal(),
)
_gpt2 = partial(_gpt, paper="Radford et al. 2019 (GPT-2)", vocab_size=50_257, max_length=1024)
_gpt2_published = partial(_gpt2, text_bytes=40e9)
# Layers with dense and with locally banded attention alternate. The paper does not give the width
# of the bands: here they have 256 positions, as in GPT-Neo. Table 2.1 gives XL 24 heads and 13B a
# width of 5140. Neither fits the totals of table D.1; 16 heads and a width of 5120 do.
_gpt3 = partial(
    _gpt,
    paper="Brown et al. 2020 (GPT-3)",
    vocab_size=50_257,
    max_length=2048,
    patterns=(None, Sliding(window=255)),
    dropout=0.0,
)
# `text_bytes` counts only filtered Common Crawl, the largest part of the text (section 2.2).
_gpt3_published = partial(_gpt3, tokens=300e9, text_bytes=570e9)
# GPT-3 with only dense attention and a larger vocabulary. Jumbo is wider and shallower than GPT-3
# 175B (sections 2.1 to 2.3).
_jurassic = partial(
    _gpt, paper="Lieber et al. 2021 (Jurassic-1)", vocab_size=256_000, max_length=2048, dropout=0.0
)
_opt = partial(
    _gpt,
    paper="Zhang et al. 2022 (OPT)",
    vocab_size=50_272,
    max_length=2048,
    activation="relu",
    initialization=Normal(std=0.006, embedding_std=0.006, residual_init="scaled"),
    learned=partial(Learned, offset=2, counted="attended"),
)
_llama1 = partial(llama, eps=1e-6)
_llama2 = partial(llama, paper="Touvron et al. 2023 (Llama 2)", context=4096, tokens=2e12)
_llama3 = partial(
    llama,
    paper="Grattafiori et al. 2024 (Llama 3)",
    context=8192,
    num_kv_heads=8,
    vocab_size=128_256,
    attention=ROTARY_ATTENTION.replace(positions=Rotary(base=500_000.0)),
    tokens=15e12,
)


def _llama31_attention(factor: float) -> Attention:
    """Return the attention of Llama 3.1 and 3.2, in which `factor` divides low RoPE frequencies."""
    scaling = Llama3Scaling(factor=factor)
    return ROTARY_ATTENTION.replace(positions=Rotary(base=500_000.0, scaling=scaling))


_llama31 = partial(_llama3, context=131_072, attention=_llama31_attention(factor=8.0))
_llama32 = partial(
    _llama3,
    paper="Meta 2024 (Llama 3.2, model card)",
    context=131_072,
    attention=_llama31_attention(factor=32.0),
    tied=True,
    tokens=9e12,
)


def _sliding_attn(window: int) -> Attention:
    """Return an attention spec: each token attends to itself and the `window` tokens before it."""
    return ROTARY_ATTENTION.replace(pattern=Sliding(window=window))


_mistral = partial(llama, paper="Jiang et al. 2023 (Mistral 7B)", context=8192)
_mistral_small = partial(_mistral, num_kv_heads=2, attention=_sliding_attn(63))
# OLMo 2 has post-sublayer norms, norms over all queries and all keys, and one initialization for
# all matrices. The feed-forward widths, the RoPE base and the vocabulary size, which exceeds the
# 100,278 tokens, are those of the released models.
_olmo2 = partial(
    llama,
    paper="OLMo Team 2024 (OLMo 2)",
    context=4096,
    vocab_size=100_352,
    eps=1e-6,
    attention=ROTARY_ATTENTION.replace(
        positions=Rotary(base=500_000.0), qk_norm=RMSNorm(), qk_norm_over="all-heads"
    ),
    norm_placement="post-sublayer",
    initialization=Normal(),
)

PRESETS: dict[str, Preset] = {
    "gpt1-tiny": _gpt1(2, 128),
    "gpt1-mini": _gpt1(4, 256),
    "gpt1": _gpt1(12, 768, text_bytes=5e9),
    "gpt2-tiny": _gpt2(2, 128),
    "gpt2-mini": _gpt2(4, 256),
    "gpt2-midi": _gpt2(6, 512),
    "gpt2": _gpt2_published(12, 768),
    "gpt2-small": _gpt2_published(12, 768),  # another name of gpt2
    "gpt2-medium": _gpt2_published(24, 1024),
    "gpt2-large": _gpt2_published(36, 1280),
    "gpt2-xl": _gpt2_published(48, 1600),
    "gpt3-tiny": _gpt3(2, 128),
    "gpt3-mini": _gpt3(4, 256),
    "gpt3-125m": _gpt3_published(12, 768, 12),
    "gpt3-350m": _gpt3_published(24, 1024, 16),
    "gpt3-760m": _gpt3_published(24, 1536, 16),
    "gpt3-1.3b": _gpt3_published(24, 2048, 16),
    "gpt3-2.7b": _gpt3_published(32, 2560, 32),
    "gpt3-6.7b": _gpt3_published(32, 4096, 32),
    "gpt3-13b": _gpt3_published(40, 5120, 40),
    "gpt3-175b": _gpt3_published(96, 12_288, 96),
    "jurassic1-tiny": _jurassic(2, 128),
    "jurassic1-mini": _jurassic(4, 256),
    "jurassic1-large": _jurassic(32, 4096, 32, tokens=300e9),
    "jurassic1-jumbo": _jurassic(76, 13_824, 96, tokens=300e9),
    "opt-tiny": _opt(2, 128),
    "opt-mini": _opt(4, 256),
    "opt-125m": _opt(12, 768, 12, tokens=300e9),
    # Unlike the other sizes: post-norm, with token embeddings half as wide as the model.
    "opt-350m": _opt(
        24,
        1024,
        16,
        tokens=300e9,
        norm_placement="post",
        factorised=Factorised(width=512, bias=False, projected="tokens"),
    ),
    "opt-1.3b": _opt(24, 2048, 32, tokens=300e9),
    "opt-2.7b": _opt(32, 2560, 32, tokens=300e9),
    "opt-6.7b": _opt(32, 4096, 32, tokens=300e9),
    "opt-13b": _opt(40, 5120, 40, tokens=300e9),
    "opt-30b": _opt(48, 7168, 56, tokens=300e9),
    "opt-66b": _opt(64, 9216, 72, tokens=300e9),
    "opt-175b": _opt(96, 12_288, 96, tokens=300e9),
    "llama-tiny": _llama1(2, 128, 4, 344, num_kv_heads=2),
    "llama-mini": _llama1(4, 256, 4, 688, num_kv_heads=2),
    "llama-midi": _llama1(8, 512, 8, 1376, num_kv_heads=4),
    "llama1-tiny": _llama1(2, 128, 2, 344),
    "llama1-mini": _llama1(4, 256, 4, 688),
    "llama1-midi": _llama1(8, 512, 8, 1376),
    "llama-7b": _llama1(32, 4096, 32, 11_008, tokens=1.0e12),
    "llama-13b": _llama1(40, 5120, 40, 13_824, tokens=1.0e12),
    "llama-33b": _llama1(60, 6656, 52, 17_920, tokens=1.4e12),
    "llama-65b": _llama1(80, 8192, 64, 22_016, tokens=1.4e12, eps=1e-5),
    "llama2-7b": _llama2(32, 4096, 32, 11_008),
    "llama2-13b": _llama2(40, 5120, 40, 13_824),
    "llama2-34b": _llama2(48, 8192, 64, 22_016, num_kv_heads=8),
    "llama2-70b": _llama2(80, 8192, 64, 28_672, num_kv_heads=8),
    "llama3-8b": _llama3(32, 4096, 32, 14_336),
    "llama3-70b": _llama3(80, 8192, 64, 28_672),
    "llama3.1-8b": _llama31(32, 4096, 32, 14_336),
    "llama3.1-405b": _llama31(126, 16_384, 128, 53_248, tokens=15.6e12),
    "llama3.2-1b": _llama32(16, 2048, 32, 8192),
    "llama3.2-3b": _llama32(28, 3072, 24, 8192),
    "mistral-tiny": _mistral_small(2, 128, 4, 448),
    "mistral-mini": _mistral_small(4, 256, 4, 896),
    "mistral-7b": _mistral(32, 4096, 32, 14_336, num_kv_heads=8, attention=_sliding_attn(4095)),
    "olmo2-tiny": _olmo2(2, 128, 4, 344),
    "olmo2-mini": _olmo2(4, 256, 4, 688),
    "olmo2-7b": _olmo2(32, 4096, 32, 11_008, tokens=4e12),
    "olmo2-13b": _olmo2(40, 5120, 40, 13_824, tokens=5e12),
    "olmo2-32b": _olmo2(64, 5120, 40, 27_648, num_kv_heads=8, tokens=6e12),
}
