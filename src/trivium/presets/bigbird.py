"""BigBird and BigBird-Pegasus: encoders with block-sparse attention for long sequences."""

from __future__ import annotations

from typing import Any

from trivium.models.heads import Dense
from trivium.models.heads.vocabulary import LMHead, MLMHead
from trivium.models.stack import Embedding, Stack
from trivium.models.transformer import TransformerSpec
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.mixers.block_sparse_attention import BlockSparseAttention
from trivium.nn.norm import LayerNorm
from trivium.nn.positions.learned import Learned
from trivium.presets.encoders import bert
from trivium.presets.preset import Preset


def _bigbird(
    num_layers: int,
    d_model: int,
    *,
    block_size: int = 64,
    paper: str = "Zaheer et al. 2020 (BigBird)",
    **published: Any,
) -> Preset:
    """Return a BigBird preset: BERT with block-sparse attention for sequences of 4,096 tokens.

    Each layer has a different seed for the random key blocks of its attention.
    """
    mixer = BlockSparseAttention(
        num_heads=d_model // 64, head_dim=64, block_size=block_size, num_random=3
    )
    return bert(
        num_layers,
        d_model,
        paper=paper,
        heads=(MLMHead(dense=Dense(activation="gelu_tanh", norm=True)),),
        mixer=tuple(mixer.replace(seed=layer) for layer in range(num_layers)),
        vocab_size=50_358,
        max_length=4096,
        activation="gelu_tanh",
        **published,
    )


def _bigbird_pegasus(num_layers: int, d_model: int) -> Preset:
    """Return a preset of PEGASUS with 16 heads and block-sparse attention in the encoder.

    The released models read up to 4,096 tokens.
    """
    size = {"num_heads": 16, "head_dim": d_model // 16, "bias": False}
    sparse = BlockSparseAttention(**size, block_size=64, num_random=3)
    parts: Any = {
        "num_layers": num_layers,
        "feed_forward": MLP(d_ff=4 * d_model, activation="gelu_tanh"),
        "norm": LayerNorm(eps=1e-5),
        "norm_placement": "pre",
        "dropout": 0.1,
    }
    mixers = tuple(sparse.replace(seed=layer) for layer in range(num_layers))
    model = TransformerSpec(
        vocab_size=96_103,
        d_model=d_model,
        embedding=Embedding(positions=Learned(max_length=4096), scale=d_model**0.5),
        encoder=Stack.from_mixers(mixer=mixers, **parts),
        decoder=Stack.from_mixers(mixer=Attention(**size), **parts),
        heads=(LMHead(tied=True),),
    )
    return Preset(model, "Zaheer et al. 2020 (BigBird-Pegasus)", 4096)


# The learning rate and the batch size of 256 rows are from appendix E.1. The paper starts from
# RoBERTa's weights; here weights are random.
PRESETS: dict[str, Preset] = {
    "bigbird-tiny": _bigbird(2, 128, block_size=16, paper="after Zaheer et al. 2020 (BigBird)"),
    "bigbird-mini": _bigbird(4, 256, block_size=16, paper="after Zaheer et al. 2020 (BigBird)"),
    "bigbird-base": _bigbird(12, 768),
    "bigbird-large": _bigbird(24, 1024),
    "bigbird-pegasus-large": _bigbird_pegasus(16, 1024),
}
