"""The modules of models, each with its equation and paper; usable alone.

A module is built from its part in `trivium.spec` and a width, and reads a context, which says what
is known of its tokens:

>>> import torch
>>> from trivium import nn, spec
>>> attention = nn.AttentionMixer(spec.Attention(num_heads=2, head_dim=4), width=8)
>>> attention(torch.zeros(3, 5, 8), nn.Context.of_length(5, causal=True)).shape
torch.Size([3, 5, 8])

A kind of mixer, positions, feed-forward network or block is a file in the folder of that name,
beside its part in `trivium.spec`. What all of them meet: `context` (what a pass knows), `mask` (who
sees whom), `attend` (which kernel), `state` (what is kept between steps), `part_module` (what is
asked of each kind).
"""

from trivium.nn.activations import ACTIVATIONS
from trivium.nn.attend import attend
from trivium.nn.blocks.sequential import Block
from trivium.nn.context import Context, EncoderOutput, LayerContext
from trivium.nn.feed_forwards import FeedForwardModule
from trivium.nn.loss import cross_entropy, linear_cross_entropy
from trivium.nn.mask import Mask
from trivium.nn.mixers import MixerModule
from trivium.nn.mixers.attention import AttentionMixer, CrossAttention
from trivium.nn.norm import build_norm
from trivium.nn.part_module import PartModule, module_class
from trivium.nn.positions import PositionsModule
from trivium.nn.state import Cache, State

__all__ = [
    "ACTIVATIONS",
    "AttentionMixer",
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
    "module_class",
]
