"""Performers: FAVOR+ instead of softmax attention, in a decoder and in a protein encoder.

All presets have pre-norm blocks, because the paper does not say where norms are placed.
"""

from __future__ import annotations

from trivium.models.heads.vocabulary import MLMHead
from trivium.models.stack import Embedding
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.performer import Performer
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.learned import Learned
from trivium.presets.preset import Preset, decoder, encoder

_PAPER = "Choromanski et al. 2020 (Performer)"
_EMBEDDING = Embedding(positions=Learned(max_length=1024))


def _performer_decoder(num_layers: int, d_model: int) -> Preset:
    """Return a preset of a decoder like GPT-2, but with FAVOR+ instead of softmax attention."""
    model = decoder(
        num_layers,
        d_model,
        vocab_size=50_257,
        embedding=_EMBEDDING,
        mixer=Performer(num_heads=d_model // 64, head_dim=64, num_features=128),
        feed_forward=MLP(d_ff=4 * d_model, activation="gelu"),
        dropout=0.1,
    )
    return Preset(model, _PAPER, 1024)


def _protein_encoder() -> Preset:
    """Return the preset of the bidirectional protein model trained on TrEMBL (section 4.4).

    It has 36 layers, 8 heads, d_model = 512 and d_ff = 1024. In the paper, ReLU features worked
    best for this model; here the features approximate softmax. Protein sequences are truncated to
    1024 amino acids (appendix C.2). The vocabulary has 25 letters for amino acids, plus special
    tokens.
    """
    model = encoder(
        36,
        512,
        vocab_size=32,
        embedding=_EMBEDDING,
        mixer=Performer(num_heads=8, head_dim=64, num_features=256),
        feed_forward=MLP(d_ff=1024, activation="gelu"),
        norm=LayerNorm(),
        norm_placement="pre",
        heads=(MLMHead(),),
    )
    return Preset(model, _PAPER, 1024)  # appendix A.2


PRESETS: dict[str, Preset] = {
    "performer-tiny": _performer_decoder(2, 128),
    "performer-mini": _performer_decoder(4, 256),
    "performer-protein": _protein_encoder(),
}
