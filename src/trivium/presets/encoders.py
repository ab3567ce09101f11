"""Encoder-only models: BERT and what came of it."""

from __future__ import annotations

from trivium.presets.preset import Preset, Training
from trivium.spec import (
    Activation,
    Attention,
    Dense,
    Embedding,
    Factorised,
    FeedForward,
    Head,
    LayerNorm,
    Learned,
    MLMHead,
    ModelSpec,
    Normal,
    NSPHead,
    ReplacedTokenHead,
    Rotary,
    Sliding,
    Stack,
)

_HEAD_DIM = 64
_TRANSFORM = Dense(activation="gelu", norm=True)  # of the masked-token head


def _bidirectional(
    num_layers: int,
    d_model: int,
    *,
    vocab_size: int,
    heads: tuple[Head, ...],
    d_embedding: int | None = None,
    num_heads: int | None = None,
    num_distinct: int | None = None,
    num_token_types: int = 2,
    position_offset: int = 0,
    activation: Activation = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.1,
) -> ModelSpec:
    """A post-norm encoder with learned positions: all that BERT and its nearest kin are."""
    num_heads = num_heads or d_model // _HEAD_DIM
    factorised = d_embedding is not None
    return ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=Embedding(
            factorised=Factorised(width=d_embedding) if d_embedding else None,
            positions=Learned(max_length=512, offset=position_offset),
            num_token_types=num_token_types,
            norm=LayerNorm(eps=eps),
        ),
        encoder=Stack(
            num_layers=num_layers,
            num_distinct=num_distinct,
            attention=Attention(num_heads=num_heads, head_dim=d_model // num_heads),
            feed_forward=FeedForward(d_ff=4 * d_model, activation=activation),
            norm=LayerNorm(eps=eps),
            norm_order="post",
            dropout=dropout,
        ),
        heads=heads,
        # Widening mixes the dimensions of positions, so that no head could look at a distance.
        initialization=Normal(
            std=round(d_model**-0.5, 4),
            branches="zero",
            attention="random" if factorised else "position_offsets",
        ),
    )


def _bert(
    num_layers: int,
    d_model: int,
    *,
    vocab_size: int = 30_522,
    paper: str = "Devlin et al. 2018 (BERT)",
) -> Preset:
    heads = (MLMHead(dense=_TRANSFORM), NSPHead())
    return Preset(
        _bidirectional(num_layers, d_model, vocab_size=vocab_size, heads=heads), paper, 512
    )


def _roberta(num_layers: int, d_model: int) -> Preset:
    spec = _bidirectional(
        num_layers,
        d_model,
        vocab_size=50_265,
        heads=(MLMHead(dense=_TRANSFORM),),
        num_token_types=1,
        position_offset=2,
        eps=1e-5,
    )
    return Preset(spec, "Liu et al. 2019 (RoBERTa)", 512)


def _albert(num_layers: int, d_model: int, *, num_heads: int | None = None) -> Preset:
    """Version 2, which was trained without dropout."""
    spec = _bidirectional(
        num_layers,
        d_model,
        vocab_size=30_000,
        heads=(MLMHead(dense=Dense(activation="gelu_tanh", norm=True)), NSPHead()),
        d_embedding=128,
        num_heads=num_heads,
        num_distinct=1,
        activation="gelu_tanh",
        dropout=0.0,
    )
    return Preset(spec, "Lan et al. 2019 (ALBERT, version 2)", 512)


def _electra(num_layers: int, d_model: int, head: Head, *, d_embedding: int) -> Preset:
    """Token vectors are as wide as the discriminator's in both models, which share them."""
    spec = _bidirectional(
        num_layers,
        d_model,
        vocab_size=30_522,
        heads=(head,),
        d_embedding=d_embedding if d_embedding != d_model else None,
    )
    return Preset(spec, "Clark et al. 2020 (ELECTRA)", 512)


def _discriminator(num_layers: int, d_model: int, *, d_embedding: int) -> Preset:
    return _electra(num_layers, d_model, ReplacedTokenHead(), d_embedding=d_embedding)


def _generator(num_layers: int, d_model: int, *, d_embedding: int) -> Preset:
    return _electra(num_layers, d_model, MLMHead(dense=_TRANSFORM), d_embedding=d_embedding)


def _modern_encoder(num_layers: int, d_model: int) -> Preset:
    """ModernBERT's shape at sizes for short runs: every third layer sees all, the others near by.

    Narrow windows first, blocks and a head that start as the identity, and attention that starts
    at the neighbours let it leave the plateau of word frequencies within minutes.
    """
    norm = LayerNorm(bias=False)
    everywhere = Attention(num_heads=d_model // _HEAD_DIM, head_dim=_HEAD_DIM, positions=Rotary())
    nearby = everywhere.replace(pattern=Sliding(window=4))
    spec = ModelSpec(
        vocab_size=50_368,
        d_model=d_model,
        embedding=Embedding(norm=norm),
        encoder=Stack(
            num_layers=num_layers,
            attention=(nearby, nearby, everywhere),
            feed_forward=FeedForward(
                d_ff=3 * d_model // 2, activation="gelu", gated=True, bias=False
            ),
            norm=norm,
            norm_order="pre",
            first_norm=False,
        ),
        heads=(MLMHead(dense=_TRANSFORM),),
        initialization=Normal(
            std=round(d_model**-0.5, 4), branches="zero", attention="position_offsets"
        ),
    )
    return Preset(spec, "after Warner et al. 2024 (ModernBERT), at sizes for short runs", 8192)


def _modernbert(num_layers: int, d_model: int, d_ff: int) -> Preset:
    """As released: windows of 64 to each side in two of three layers, which turn faster."""
    norm = LayerNorm(bias=False)
    everywhere = Attention(
        num_heads=d_model // _HEAD_DIM,
        head_dim=_HEAD_DIM,
        bias=False,
        positions=Rotary(base=160_000.0),
    )
    nearby = everywhere.replace(pattern=Sliding(window=64), positions=Rotary(base=10_000.0))
    spec = ModelSpec(
        vocab_size=50_368,
        d_model=d_model,
        embedding=Embedding(norm=norm),
        encoder=Stack(
            num_layers=num_layers,
            attention=(everywhere, nearby, nearby),
            feed_forward=FeedForward(d_ff=d_ff, activation="gelu", gated=True, bias=False),
            norm=norm,
            norm_order="pre",
            first_norm=False,
        ),
        heads=(MLMHead(dense=Dense(activation="gelu", bias=False, norm=True)),),
        initialization=Normal(branches="scaled"),
    )
    return Preset(spec, "Warner et al. 2024 (ModernBERT)", 8192, Training(tokens=2e12))


_TURC = "Turc et al. 2019 (small BERTs)"
_RELEASED = "Devlin et al. 2018 (BERT, as released)"

ENCODERS: dict[str, Preset] = {
    "bert-tiny": _bert(2, 128, paper=_TURC),
    "bert-mini": _bert(4, 256, paper=_TURC),
    "bert-small": _bert(4, 512, paper=_TURC),
    "bert-medium": _bert(8, 512, paper=_TURC),
    "bert-base": _bert(12, 768),
    "bert-large": _bert(24, 1024),
    "bert-base-cased": _bert(12, 768, vocab_size=28_996, paper=_RELEASED),
    "bert-large-cased": _bert(24, 1024, vocab_size=28_996, paper=_RELEASED),
    "bert-base-multilingual-uncased": _bert(12, 768, vocab_size=105_879, paper=_RELEASED),
    "bert-base-multilingual-cased": _bert(12, 768, vocab_size=119_547, paper=_RELEASED),
    "bert-base-chinese": _bert(12, 768, vocab_size=21_128, paper=_RELEASED),
    "roberta-tiny": _roberta(2, 128),
    "roberta-mini": _roberta(4, 256),
    "roberta-base": _roberta(12, 768),
    "roberta-large": _roberta(24, 1024),
    "albert-tiny": _albert(2, 128),
    "albert-mini": _albert(4, 256),
    "albert-base": _albert(12, 768),
    "albert-large": _albert(24, 1024),
    "albert-xlarge": _albert(24, 2048, num_heads=16),
    "albert-xxlarge": _albert(12, 4096),
    "electra-tiny": _discriminator(2, 128, d_embedding=128),
    "electra-tiny-generator": _generator(2, 64, d_embedding=128),
    "electra-mini": _discriminator(4, 256, d_embedding=128),
    "electra-mini-generator": _generator(4, 64, d_embedding=128),
    "electra-small": _discriminator(12, 256, d_embedding=128),
    "electra-small-generator": _generator(12, 256, d_embedding=128),
    "electra-base": _discriminator(12, 768, d_embedding=768),
    "electra-base-generator": _generator(12, 256, d_embedding=768),
    "electra-large": _discriminator(24, 1024, d_embedding=1024),
    "electra-large-generator": _generator(24, 256, d_embedding=1024),
    "modernbert-tiny": _modern_encoder(2, 128),
    "modernbert-mini": _modern_encoder(4, 256),
    "modernbert-small": _modern_encoder(6, 512),
    "modernbert-base": _modernbert(22, 768, 1152),
    "modernbert-large": _modernbert(28, 1024, 2624),
}
