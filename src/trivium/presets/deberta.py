"""DeBERTa: encoders with disentangled attention."""

from __future__ import annotations

from trivium.models.heads import Dense, Head
from trivium.models.heads.tokens import ReplacedTokenHead
from trivium.models.heads.vocabulary import MLMHead
from trivium.models.stack import Embedding
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.disentangled import Disentangled
from trivium.nn.positions.learned import Learned
from trivium.presets.preset import Preset, attention, encoder

_NORM = LayerNorm(eps=1e-7)
_MLM = MLMHead(
    dense=Dense(activation="gelu", norm=True), mask_decoder_positions=Learned(max_length=512)
)


def _deberta(
    num_layers: int,
    d_model: int,
    *,
    paper: str,
    vocab_size: int,
    key_bias: bool | None,
    positions: Disentangled,
    head: Head,
) -> Preset:
    """Return a DeBERTa preset of any version: a post-norm encoder with disentangled attention.

    The token embeddings get no absolute position embeddings.
    """
    model = encoder(
        num_layers,
        d_model,
        vocab_size=vocab_size,
        embedding=Embedding(norm=_NORM),
        mixer=attention(d_model, d_model // 64, key_bias=key_bias, positions=positions),
        norm=_NORM,
        heads=(head,),
    )
    return Preset(model, paper, 512)


def _deberta_v1(num_layers: int, d_model: int) -> Preset:
    """Return a DeBERTa v1 preset: disentangled attention with 1,024 relative position embeddings.

    The position embeddings have separate query and key projections. The MLM head has an enhanced
    mask decoder (EMD), which adds absolute position embeddings.
    """
    return _deberta(
        num_layers,
        d_model,
        paper="He et al. 2020 (DeBERTa)",
        vocab_size=50_265,
        key_bias=False,
        positions=Disentangled(span=512, shared=False),
        head=_MLM,
    )


def _deberta_v3(num_layers: int, d_model: int) -> Preset:
    """Return a DeBERTa v3 preset: the discriminator, trained with replaced-token detection (RTD).

    Relative positions have 256 buckets per direction, for distances up to 512. The query and key
    projections of the content also project the position embeddings. Published generators have the
    same width as the discriminator, half its depth, and an enhanced mask decoder. The generators
    that the objective builds here have the same depth, a smaller width, and no mask decoder.
    """
    return _deberta(
        num_layers,
        d_model,
        paper="He et al. 2021 (DeBERTa v3)",
        vocab_size=128_100,
        key_bias=None,
        positions=Disentangled(span=256, max_distance=512, norm=_NORM),
        head=ReplacedTokenHead(),
    )


PRESETS: dict[str, Preset] = {
    "deberta-tiny": _deberta_v1(2, 128),
    "deberta-mini": _deberta_v1(4, 256),
    "deberta-base": _deberta_v1(12, 768),
    "deberta-large": _deberta_v1(24, 1024),
    "deberta-v3-tiny": _deberta_v3(2, 128),
    "deberta-v3-mini": _deberta_v3(4, 256),
    "deberta-v3-xsmall": _deberta_v3(12, 384),
    "deberta-v3-small": _deberta_v3(6, 768),
    "deberta-v3-base": _deberta_v3(12, 768),
    "deberta-v3-large": _deberta_v3(24, 1024),
}
