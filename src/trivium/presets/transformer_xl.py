"""Transformer-XL: decoders with segment-level recurrence.

In the sizes for WikiText-103, the embeddings of all tokens have the width of the model. The
published large model has adaptive embeddings, which are narrower for rare tokens (Baevski and Auli
2019). It has 257M parameters; the preset has 520M.
"""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Normal
from trivium.models.stack import Embedding
from trivium.nn.blocks import NormPlacement
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.transformer_xl_attention import TransformerXLAttention
from trivium.nn.positions.transformer_xl import TransformerXLPositions
from trivium.presets.preset import GPT2_INIT, Preset, decoder


def _transformer_xl(
    num_layers: int,
    d_model: int,
    d_ff: int,
    num_heads: int,
    memory: int,
    *,
    paper: str,
    vocab_size: int = 50_257,
    norm_placement: NormPlacement = "post",
    dropout: float = 0.0,
    **published: float,
) -> Preset:
    """Return a Transformer-XL preset. Layers also attend to `memory` tokens before the segment."""
    model = decoder(
        num_layers,
        d_model,
        vocab_size=vocab_size,
        embedding=Embedding(scale=d_model**0.5),
        mixer=TransformerXLAttention(
            num_heads=num_heads,
            head_dim=d_model // num_heads,
            bias=False,
            positions=TransformerXLPositions(),
            memory=memory,
        ),
        feed_forward=MLP(d_ff=d_ff, activation="relu"),
        norm_placement=norm_placement,
        dropout=dropout,
        head=LMHead(tied=True, bias=True),
        initialization=GPT2_INIT if norm_placement == "pre" else Normal(),
    )
    return Preset(model, paper, memory, **published)


_PAPER = "Dai et al. 2019 (Transformer-XL)"


def _small_transformer_xl(num_layers: int, d_model: int) -> Preset:
    """Return a Transformer-XL preset of our own size for short runs, with pre-norm blocks."""
    return _transformer_xl(
        num_layers,
        d_model,
        4 * d_model,
        d_model // 64,
        128,
        paper=f"after {_PAPER}",
        norm_placement="pre",
    )


PRESETS: dict[str, Preset] = {
    "transformer-xl-tiny": _small_transformer_xl(2, 128),
    "transformer-xl-mini": _small_transformer_xl(4, 256),
    # Batch sizes and steps are from the authors' run_wt103_base.sh and _large.sh.
    "transformer-xl-base": _transformer_xl(
        16, 410, 2100, 10, 150, paper=_PAPER, vocab_size=267_735, dropout=0.1,
        tokens=2e5 * 60 * 150,
    ),
    "transformer-xl-large": _transformer_xl(
        18, 1024, 4096, 16, 384, paper=_PAPER, vocab_size=267_735, dropout=0.2,
        tokens=4e6 * 128 * 384,
    ),
}  # fmt: skip
