"""Sparse Transformers: the paper's model for EnWik8, and small sizes of our own."""

from __future__ import annotations

from trivium.models.heads.vocabulary import LMHead
from trivium.models.initialization import Normal
from trivium.models.stack import Embedding
from trivium.nn.activations import Swish
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.patterns import Fixed
from trivium.nn.positions.learned import Learned
from trivium.presets.preset import Preset, attention, decoder


def _sparse_transformer(
    num_layers: int,
    d_model: int,
    num_heads: int,
    length: int,
    stride: int,
    num_summary: int,
    tokens: float | None = None,
) -> Preset:
    """Return a Sparse Transformer preset for bytes, with the fixed attention pattern in every head.

    A token attends to its own block and to the summary positions, which are the same for all heads.
    The other positions are masked, which saves neither time nor memory here.

    The model differs from the paper as follows. There is one learned embedding per position. In the
    paper, positions form a matrix as wide as the stride, and a position gets the sum of a row
    embedding and a column embedding. Here, attention has dropout. The scaled initialization has the
    same standard deviation for all matrices, including the head, which the paper initializes to
    zero (section 6).
    """
    std = round(0.125 / d_model**0.5, 5)
    model = decoder(
        num_layers,
        d_model,
        vocab_size=256,
        embedding=Embedding(positions=Learned(max_length=length)),
        mixer=attention(d_model, num_heads, pattern=Fixed(stride=stride, num_summary=num_summary)),
        feed_forward=MLP(d_ff=4 * d_model, activation=Swish(beta=1.702)),
        dropout=0.4,
        head=LMHead(tied=False),
        initialization=Normal(std=std, embedding_std=std, residual_init="scaled"),
    )
    return Preset(model, "Child et al. 2019 (Sparse Transformer)", length, tokens)


PRESETS: dict[str, Preset] = {
    "sparse-transformer-tiny": _sparse_transformer(2, 128, 2, 512, 32, 8),
    "sparse-transformer-mini": _sparse_transformer(4, 256, 4, 512, 32, 8),
    # Section 7.2: 80 epochs of 90 million bytes.
    "sparse-transformer-enwik8": _sparse_transformer(30, 512, 8, 12_288, 128, 32, tokens=80 * 90e6),
}
