"""Pre-norm encoder-decoders for translation and summaries: mBART, M2M-100, NLLB-200 and PEGASUS."""

from __future__ import annotations

from functools import partial

from trivium.models.heads.vocabulary import LMHead
from trivium.models.stack import Embedding, Stack
from trivium.models.transformer import TransformerSpec
from trivium.nn.activations import Activation
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import LayerNorm
from trivium.nn.positions import AbsolutePositions
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.sinusoidal import Sinusoidal
from trivium.presets.preset import Preset


def _encoder_decoder(
    num_layers: int,
    d_model: int,
    d_ff: int,
    *,
    paper: str,
    vocab_size: int,
    positions: AbsolutePositions,
    activation: Activation = "relu",
    embedding_norm: LayerNorm | None = None,
) -> Preset:
    """Return a preset with 16 heads, tied embeddings and `num_layers` layers in both stacks.

    The released models read at most 1024 tokens.
    """
    stack = Stack.from_mixers(
        num_layers=num_layers,
        mixer=Attention(num_heads=16, head_dim=d_model // 16),
        feed_forward=MLP(d_ff=d_ff, activation=activation),
        norm=LayerNorm(),
        norm_placement="pre",
        dropout=0.1,
    )
    model = TransformerSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=Embedding(positions=positions, norm=embedding_norm, scale=d_model**0.5),
        encoder=stack,
        decoder=stack,
        heads=(LMHead(tied=True),),
    )
    return Preset(model, paper, 1024)


_mbart = partial(
    _encoder_decoder,
    12,
    1024,
    4096,
    positions=Learned(max_length=1024, offset=2),
    activation="gelu",
    embedding_norm=LayerNorm(),
)
# The sinusoids of fairseq, from whose code these models come. Padding has no position.
_FAIRSEQ = Sinusoidal(
    layout="halves", spacing="inclusive", offset=2, counted="not-padding", max_length=1024
)
_m2m_100 = partial(
    _encoder_decoder, paper="Fan et al. 2020 (M2M-100)", vocab_size=128_112, positions=_FAIRSEQ
)
_nllb = partial(
    _encoder_decoder, paper="NLLB Team 2022 (NLLB-200)", vocab_size=256_206, positions=_FAIRSEQ
)

PRESETS: dict[str, Preset] = {
    "mbart-large": _mbart(paper="Liu et al. 2020 (mBART)", vocab_size=250_027),
    "mbart-50-large": _mbart(paper="Tang et al. 2020 (mBART-50)", vocab_size=250_054),
    "m2m100-418m": _m2m_100(12, 1024, 4096),
    "m2m100-1.2b": _m2m_100(24, 1024, 8192),
    "nllb-600m": _nllb(12, 1024, 4096),
    "nllb-1.3b": _nllb(24, 1024, 8192),
    "nllb-3.3b": _nllb(24, 2048, 8192),
    "pegasus-large": _encoder_decoder(
        16,
        1024,
        4096,
        paper="Zhang et al. 2019 (PEGASUS)",
        vocab_size=96_103,
        positions=Sinusoidal(layout="halves", max_length=1024),
    ),
}
