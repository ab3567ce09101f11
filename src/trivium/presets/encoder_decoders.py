"""Encoder-decoder models: the first Transformer, T5, BART and Marian.

T5 and BART start by looking things up (`FanIn`, `Normal`), not as published: they learn to use
their source within minutes.
"""

from __future__ import annotations

from typing import Literal

from trivium.presets.preset import Preset, Training
from trivium.spec import (
    Attention,
    Embedding,
    FanIn,
    FeedForward,
    LayerNorm,
    Learned,
    LMHead,
    ModelSpec,
    Normal,
    RelativeBias,
    RMSNorm,
    Sinusoidal,
    Stack,
    Xavier,
)


def _transformer(
    num_layers: int,
    d_model: int,
    *,
    dropout: float = 0.1,
    norm_order: Literal["pre", "post"] = "post",
) -> Preset:
    """The vocabulary is that of English to German, shared by source, target and output.

    The paper trains on single sentences and names no longest one.
    """
    stack = Stack(
        num_layers=num_layers,
        attention=Attention(num_heads=d_model // 64, head_dim=64, bias=False),
        feed_forward=FeedForward(d_ff=4 * d_model, activation="relu"),
        norm=LayerNorm(),
        norm_order=norm_order,
        dropout=dropout,
    )
    spec = ModelSpec(
        vocab_size=37_000,
        d_model=d_model,
        embedding=Embedding(positions=Sinusoidal(), scale=d_model**0.5),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=True),),
        initialization=Xavier(),
    )
    variant = ", pre-norm" if norm_order == "pre" else ""
    return Preset(spec, f"Vaswani et al. 2017 (Transformer{variant})", None)


def _t5_stack(
    num_layers: int, feed_forward: FeedForward, num_heads: int, head_dim: int, dropout: float
) -> Stack:
    return Stack(
        num_layers=num_layers,
        attention=Attention(
            num_heads=num_heads,
            head_dim=head_dim,
            bias=False,
            scale=1.0,
            positions=RelativeBias(num_buckets=32, max_distance=128),
        ),
        feed_forward=feed_forward,
        norm=RMSNorm(eps=1e-6),
        norm_order="pre",
        dropout=dropout,
    )


def _t5(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    *,
    head_dim: int = 64,
    training: Training | None = None,
) -> Preset:
    feed_forward = FeedForward(d_ff=d_ff, activation="relu", bias=False)
    stack = _t5_stack(num_layers, feed_forward, num_heads, head_dim, dropout=0.1)
    spec = ModelSpec(
        vocab_size=32_128,
        d_model=d_model,
        embedding=Embedding(),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=True, scale=d_model**-0.5),),
        initialization=FanIn(attention="copy_heads"),
    )
    return Preset(spec, "Raffel et al. 2019 (T5)", 512, training)


def _t5_v11(num_layers: int, d_model: int, num_heads: int, d_ff: int) -> Preset:
    """Gated, untied, and pretrained without dropout."""
    feed_forward = FeedForward(d_ff=d_ff, activation="gelu_tanh", gated=True, bias=False)
    stack = _t5_stack(num_layers, feed_forward, num_heads, 64, dropout=0.0)
    spec = ModelSpec(
        vocab_size=32_128,
        d_model=d_model,
        embedding=Embedding(),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=False),),
        initialization=FanIn(attention="copy_heads"),
    )
    return Preset(spec, "Shazeer 2020, Raffel et al. 2019 (T5 1.1)", 512)


def _bart(num_layers: int, d_model: int) -> Preset:
    std = round(d_model**-0.5, 4)
    stack = Stack(
        num_layers=num_layers,
        attention=Attention(num_heads=d_model // 64, head_dim=64),
        feed_forward=FeedForward(d_ff=4 * d_model, activation="gelu"),
        norm=LayerNorm(),
        norm_order="post",
        dropout=0.1,
    )
    spec = ModelSpec(
        vocab_size=50_265,
        d_model=d_model,
        embedding=Embedding(positions=Learned(max_length=1024, offset=2), norm=LayerNorm()),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=True),),
        initialization=Normal(std=std, embedding_std=std, branches="zero", attention="copy_heads"),
    )
    return Preset(spec, "Lewis et al. 2019 (BART)", 1024)


def _marian(num_layers: int, d_model: int) -> Preset:
    """OPUS-MT's models, with the vocabulary of English to French; its logits have a bias."""
    stack = Stack(
        num_layers=num_layers,
        attention=Attention(num_heads=d_model // 64, head_dim=64),
        feed_forward=FeedForward(d_ff=4 * d_model, activation="silu"),
        norm=LayerNorm(),
        norm_order="post",
        dropout=0.1,
    )
    spec = ModelSpec(
        vocab_size=59_514,
        d_model=d_model,
        embedding=Embedding(
            positions=Sinusoidal(layout="halves", max_length=512), scale=d_model**0.5
        ),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=True, bias=True),),
        initialization=Xavier(),
    )
    return Preset(spec, "Tiedemann and Thottingal 2020 (OPUS-MT, Marian)", 512)


# Section 3.7 of the T5 paper: 1 million steps of 2^20 tokens.
_T5_TRAINING = Training(tokens=2.0**20 * 1e6, batch_tokens=2.0**20)

ENCODER_DECODERS: dict[str, Preset] = {
    "transformer-tiny": _transformer(2, 128),
    "transformer-mini": _transformer(4, 256),
    "transformer-base": _transformer(6, 512),
    "transformer-big": _transformer(6, 1024, dropout=0.3),
    "transformer-base-pre-norm": _transformer(6, 512, norm_order="pre"),
    "transformer-big-pre-norm": _transformer(6, 1024, dropout=0.3, norm_order="pre"),
    "t5-tiny": _t5(2, 128, 2, 512),
    "t5-mini": _t5(4, 256, 4, 1024),
    "t5-small": _t5(6, 512, 8, 2048, training=_T5_TRAINING),
    "t5-base": _t5(12, 768, 12, 3072, training=_T5_TRAINING),
    "t5-large": _t5(24, 1024, 16, 4096, training=_T5_TRAINING),
    "t5-3b": _t5(24, 1024, 32, 16_384, head_dim=128, training=_T5_TRAINING),
    "t5-11b": _t5(24, 1024, 128, 65_536, head_dim=128, training=_T5_TRAINING),
    "t5-v1.1-tiny": _t5_v11(2, 128, 2, 344),
    "t5-v1.1-mini": _t5_v11(4, 256, 4, 688),
    "t5-v1.1-small": _t5_v11(8, 512, 6, 1024),
    "t5-v1.1-base": _t5_v11(12, 768, 12, 2048),
    "t5-v1.1-large": _t5_v11(24, 1024, 16, 2816),
    "t5-v1.1-xl": _t5_v11(24, 2048, 32, 5120),
    "t5-v1.1-xxl": _t5_v11(24, 4096, 64, 10_240),
    "bart-tiny": _bart(2, 128),
    "bart-mini": _bart(4, 256),
    "bart-base": _bart(6, 768),
    "bart-large": _bart(12, 1024),
    "marian-tiny": _marian(2, 128),
    "marian-mini": _marian(4, 256),
    "marian-opus-mt": _marian(6, 512),
}
