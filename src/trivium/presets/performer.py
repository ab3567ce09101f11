"""Performers: GPT-2's shape, and the encoder of proteins, with FAVOR+ in place of attention."""

from __future__ import annotations

from trivium import spec
from trivium.presets.preset import Preset
from trivium.spec.mixers.performer import Performer

_PAPER = "Choromanski et al. 2020 (Performer)"


def _stack(
    num_layers: int, d_model: int, d_ff: int, num_heads: int, num_features: int
) -> spec.Stack:
    """Pre-norm blocks; the paper does not say where norms are."""
    return spec.Stack(
        num_layers=num_layers,
        mixer=Performer(
            num_heads=num_heads, head_dim=d_model // num_heads, num_features=num_features
        ),
        feed_forward=spec.FeedForward(d_ff=d_ff, activation="gelu"),
        norm=spec.LayerNorm(),
        norms=spec.PRE_NORM,
        dropout=0.1,
    )


def _decoder(num_layers: int, d_model: int, max_length: int = 1024) -> Preset:
    """A language model of a shape like GPT-2's, with learned positions."""
    model = spec.ModelSpec(
        vocab_size=50_257,
        d_model=d_model,
        embedding=spec.Embedding(positions=spec.Learned(max_length=max_length)),
        decoder=_stack(num_layers, d_model, 4 * d_model, d_model // 64, 128),
        heads=(spec.LMHead(tied=True),),
        initialization=spec.Normal(residual_init="scaled"),
    )
    return Preset(model, _PAPER, max_length)


def _protein_encoder() -> Preset:
    """The bidirectional model of TrEMBL: 36 layers, 8 heads, widths 512 and 1024 (section 4.4).

    The paper's best features of it are ReLU, not those of softmax. Proteins are cut to 1024 letters
    (appendix C.2), 25 of which there are; the others are for special tokens.
    """
    model = spec.ModelSpec(
        vocab_size=32,
        d_model=512,
        embedding=spec.Embedding(positions=spec.Learned(max_length=1024)),
        encoder=_stack(36, 512, 1024, 8, 256),
        heads=(spec.MLMHead(),),
    )
    return Preset(model, _PAPER, 1024, lr=1e-3)  # appendix A.2


PRESETS: dict[str, Preset] = {
    "performer-tiny": _decoder(2, 128),
    "performer-mini": _decoder(4, 256),
    "performer-protein": _protein_encoder(),
}
