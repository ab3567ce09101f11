"""The parts of models, each with its equation and paper; usable alone.

A part has a configuration, whose `build` returns its module. The module of a mixer reads a context,
which says what is known of its tokens:

>>> import torch
>>> from trivium import nn, spec
>>> attention = spec.Attention(num_heads=2, head_dim=4).build(8)
>>> attention(torch.zeros(3, 5, 8), nn.Context.of_length(5, causal=True)).shape
torch.Size([3, 5, 8])

A kind of mixer, positions or feed-forward network is a file in the folder of that name. What all of
them meet: `context` (what a pass knows), `mask` (who sees whom), `attend` (which kernel), `state`
(what is kept between steps), `part` (what is asked of each kind).
"""

from trivium.nn.activations import ACTIVATIONS
from trivium.nn.attend import attend
from trivium.nn.blocks import Block
from trivium.nn.context import Context, EncoderOutput, LayerContext
from trivium.nn.feed_forwards import FeedForwardModule
from trivium.nn.loss import cross_entropy, linear_cross_entropy
from trivium.nn.mask import Mask
from trivium.nn.mixers import MixerModule
from trivium.nn.mixers.attention import AttentionModule, CrossAttention
from trivium.nn.norm import build_norm
from trivium.nn.part import PartModule
from trivium.nn.positions import PositionsModule
from trivium.nn.state import Cache, State

__all__ = [
    "ACTIVATIONS",
    "AttentionModule",
    "Block",
    "Cache",
    "Context",
    "CrossAttention",
    "EncoderOutput",
    "FeedForwardModule",
    "LayerContext",
    "Mask",
    "MixerModule",
    "PartModule",
    "PositionsModule",
    "State",
    "attend",
    "build_norm",
    "cross_entropy",
    "linear_cross_entropy",
]
