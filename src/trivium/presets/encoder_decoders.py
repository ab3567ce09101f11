"""Encoder-decoder models: the original Transformer, T5, mT5, umT5, BART and Marian."""

from __future__ import annotations

from functools import partial
from typing import Any

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import FanIn, Xavier
from trivium.models.stack import Embedding, Stack
from trivium.models.transformer import TransformerSpec
from trivium.nn.activations import Activation
from trivium.nn.blocks import NormPlacement
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import LayerNorm, RMSNorm
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.relative_bias import RelativeBias
from trivium.nn.positions.sinusoidal import Sinusoidal
from trivium.presets.preset import Preset


def _build_stack(
    num_layers: int,
    d_model: int,
    activation: Activation,
    *,
    bias: bool = True,
    norm_placement: NormPlacement = "post",
    dropout: float = 0.1,
) -> Stack:
    """Return the encoder or decoder stack of an original Transformer, BART or Marian model."""
    return Stack.from_mixers(
        num_layers=num_layers,
        mixer=Attention(num_heads=d_model // 64, head_dim=64, bias=bias),
        feed_forward=MLP(d_ff=4 * d_model, activation=activation),
        norm=LayerNorm(),
        norm_placement=norm_placement,
        dropout=dropout,
    )


def _transformer(
    num_layers: int, d_model: int, *, dropout: float = 0.1, norm_placement: NormPlacement = "post"
) -> Preset:
    """Return a preset of the original Transformer, with the paper's English-German vocabulary.

    Source embeddings, target embeddings and output projection share one weight. The paper trains on
    sentence pairs and does not give a maximum length.
    """
    stack = _build_stack(
        num_layers, d_model, "relu", bias=False, norm_placement=norm_placement, dropout=dropout
    )
    model = TransformerSpec(
        vocab_size=37_000,
        d_model=d_model,
        embedding=Embedding(positions=Sinusoidal(), scale=d_model**0.5),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=True),),
        initialization=Xavier(),
    )
    variant = ", pre-norm" if norm_placement == "pre" else ""
    return Preset(model, f"Vaswani et al. 2017 (Transformer{variant})", None)


def _t5(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    tokens: float | None = None,
    *,
    head_dim: int = 64,
    v11: bool = False,
    paper: str = "Raffel et al. 2019 (T5)",
    vocab_size: int = 32_128,
    context: int = 512,
) -> Preset:
    """Return a T5 preset, of version 1.1 if `v11` is True.

    Version 1.1 has a GELU-gated feed-forward network (GEGLU), an untied output projection, and no
    dropout in pretraining. mT5 is version 1.1 with another vocabulary.
    """
    stack = Stack.from_mixers(
        num_layers=num_layers,
        mixer=Attention(
            num_heads=num_heads,
            head_dim=head_dim,
            bias=False,
            scale=1.0,
            positions=RelativeBias(num_buckets=32, max_distance=128),
        ),
        feed_forward=MLP(
            d_ff=d_ff, activation="gelu_tanh" if v11 else "relu", gated=v11, bias=False
        ),
        norm=RMSNorm(eps=1e-6),
        norm_placement="pre",
        dropout=0.0 if v11 else 0.1,
    )
    model = TransformerSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=Embedding(),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=not v11, scale=1.0 if v11 else d_model**-0.5),),
        initialization=FanIn(),
    )
    return Preset(model, paper, context, tokens)


_t5_v11 = partial(_t5, v11=True, paper="Shazeer 2020, Raffel et al. 2019 (T5 1.1)")
_mt5 = partial(_t5, v11=True, paper="Xue et al. 2020 (mT5)", vocab_size=250_112, context=1024)


def _umt5(num_layers: int, d_model: int, num_heads: int, d_ff: int) -> Preset:
    """Return a preset of umT5: mT5 with relative position biases of its own in every layer."""
    preset = _mt5(num_layers, d_model, num_heads, d_ff)
    spec: Any = preset.spec
    mixer = spec.encoder.mixers[0]
    mixers = tuple(
        mixer.replace(positions=mixer.positions.replace(table=layer)) for layer in range(num_layers)
    )
    stack = spec.encoder.with_layers(mixer=mixers)
    model = spec.replace(vocab_size=256_384, encoder=stack, decoder=stack)
    return Preset(model, "Chung et al. 2023 (UniMax, umT5)", 1024)


def _bart(num_layers: int, d_model: int) -> Preset:
    """Return a BART preset: post-norm blocks, GELU and learned position embeddings."""
    stack = _build_stack(num_layers, d_model, "gelu")
    model = TransformerSpec(
        vocab_size=50_265,
        d_model=d_model,
        embedding=Embedding(positions=Learned(max_length=1024, offset=2), norm=LayerNorm()),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=True),),
    )
    return Preset(model, "Lewis et al. 2019 (BART)", 1024)


def _marian(num_layers: int, d_model: int) -> Preset:
    """Return a preset of the Marian models of OPUS-MT, with its English-French vocabulary.

    The blocks are post-norm with SiLU. The output projection is tied and has a bias.
    """
    stack = _build_stack(num_layers, d_model, "silu")
    model = TransformerSpec(
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
    return Preset(model, "Tiedemann and Thottingal 2020 (OPUS-MT, Marian)", 512)


# Raffel et al. 2019, section 3.7, and Xue et al. 2020, section 3.2: 1 million steps of 2^20 tokens.
_T5_TOKENS = 2.0**20 * 1e6

PRESETS: dict[str, Preset] = {
    "transformer-tiny": _transformer(2, 128),
    "transformer-mini": _transformer(4, 256),
    "transformer-base": _transformer(6, 512),
    "transformer-big": _transformer(6, 1024, dropout=0.3),
    "transformer-base-pre-norm": _transformer(6, 512, norm_placement="pre"),
    "transformer-big-pre-norm": _transformer(6, 1024, dropout=0.3, norm_placement="pre"),
    "t5-tiny": _t5(2, 128, 2, 512),
    "t5-mini": _t5(4, 256, 4, 1024),
    "t5-small": _t5(6, 512, 8, 2048, _T5_TOKENS),
    "t5-base": _t5(12, 768, 12, 3072, _T5_TOKENS),
    "t5-large": _t5(24, 1024, 16, 4096, _T5_TOKENS),
    "t5-3b": _t5(24, 1024, 32, 16_384, _T5_TOKENS, head_dim=128),
    "t5-11b": _t5(24, 1024, 128, 65_536, _T5_TOKENS, head_dim=128),
    "t5-v1.1-tiny": _t5_v11(2, 128, 2, 344),
    "t5-v1.1-mini": _t5_v11(4, 256, 4, 688),
    "t5-v1.1-small": _t5_v11(8, 512, 6, 1024),
    "t5-v1.1-base": _t5_v11(12, 768, 12, 2048),
    "t5-v1.1-large": _t5_v11(24, 1024, 16, 2816),
    "t5-v1.1-xl": _t5_v11(24, 2048, 32, 5120),
    "t5-v1.1-xxl": _t5_v11(24, 4096, 64, 10_240),
    "mt5-small": _mt5(8, 512, 6, 1024, _T5_TOKENS),
    "mt5-base": _mt5(12, 768, 12, 2048, _T5_TOKENS),
    "mt5-large": _mt5(24, 1024, 16, 2816, _T5_TOKENS),
    "mt5-xl": _mt5(24, 2048, 32, 5120, _T5_TOKENS),
    "mt5-xxl": _mt5(24, 4096, 64, 10_240, _T5_TOKENS),
    "umt5-small": _umt5(8, 512, 6, 1024),
    "umt5-base": _umt5(12, 768, 12, 2048),
    "umt5-xl": _umt5(24, 2048, 32, 5120),
    "umt5-xxl": _umt5(24, 4096, 64, 10_240),
    "bart-tiny": _bart(2, 128),
    "bart-mini": _bart(4, 256),
    "bart-base": _bart(6, 768),
    "bart-large": _bart(12, 1024),
    "marian-tiny": _marian(2, 128),
    "marian-mini": _marian(4, 256),
    "marian-opus-mt": _marian(6, 512),
}
