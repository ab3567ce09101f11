"""The parts of models, each with its equation and paper; usable alone.

A part is built from its description in `trivium.spec` and a width:

>>> import torch
>>> from trivium import nn, spec
>>> attention = nn.MultiHeadAttention(spec.Attention(num_heads=2, head_dim=4), width=8)
>>> attention(torch.zeros(3, 5, 8), nn.Mask(causal=True)).shape
torch.Size([3, 5, 8])

One idea a module: `attention`, `block`, `mask`, `kv_cache`, `positions`, `feed_forward`, `norm`,
`loss`, `precision`, `recurrent`, `packed_linear`.
"""

from trivium.nn.attention import MultiHeadAttention, attend
from trivium.nn.block import Block, Memory
from trivium.nn.feed_forward import ACTIVATIONS, build_feed_forward
from trivium.nn.loss import cross_entropy, linear_cross_entropy
from trivium.nn.mask import Mask
from trivium.nn.norm import build_norm
from trivium.nn.positions import (
    LearnedPositions,
    LinearBias,
    RelativePositionBias,
    Rotation,
    SinusoidalPositions,
)

__all__ = [
    "ACTIVATIONS",
    "Block",
    "LearnedPositions",
    "LinearBias",
    "Mask",
    "Memory",
    "MultiHeadAttention",
    "RelativePositionBias",
    "Rotation",
    "SinusoidalPositions",
    "attend",
    "build_feed_forward",
    "build_norm",
    "cross_entropy",
    "linear_cross_entropy",
]
