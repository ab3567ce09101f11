"""BigBird: encoders with block-sparse attention for long sequences."""

from __future__ import annotations

from typing import Any

from trivium.models.heads import Dense
from trivium.models.heads.vocabulary import MLMHead
from trivium.nn.mixers.block_sparse_attention import BlockSparseAttention
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


# The learning rate and the batch size of 256 rows are from appendix E.1. The paper starts from
# RoBERTa's weights; here weights are random.
PRESETS: dict[str, Preset] = {
    "bigbird-tiny": _bigbird(2, 128, block_size=16, paper="after Zaheer et al. 2020 (BigBird)"),
    "bigbird-mini": _bigbird(4, 256, block_size=16, paper="after Zaheer et al. 2020 (BigBird)"),
    "bigbird-base": _bigbird(12, 768),
    "bigbird-large": _bigbird(24, 1024),
}
