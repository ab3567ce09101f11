"""The parts of models, each with its equation and paper. Every part can be used on its own.

A part has a configuration (spec), whose method `build` returns a PyTorch module. The module of a
mixer takes hidden states and a `SequenceInfo`, the metadata of the tokens:

>>> import torch
>>> from trivium import nn, spec
>>> attention = spec.Attention(num_heads=2, head_dim=4).build(8)
>>> attention(torch.zeros(3, 5, 8), nn.SequenceInfo.of_length(5, causal=True)).shape
torch.Size([3, 5, 8])

Each kind of mixer, position encoding and feed-forward network has its own file in the folders
`mixers`, `positions` and `feed_forwards`. They share `sequence_info` (the metadata of a forward
pass), `mask` (the attention mask), `attend` (the attention kernels), `state` (the cache) and `part`
(the base classes).
"""

from trivium.nn.activations import ACTIVATIONS as ACTIVATIONS
from trivium.nn.attend import attend as attend
from trivium.nn.blocks import Block as Block
from trivium.nn.feed_forwards import FeedForwardModule as FeedForwardModule
from trivium.nn.loss import cross_entropy as cross_entropy
from trivium.nn.loss import linear_cross_entropy as linear_cross_entropy
from trivium.nn.mask import Mask as Mask
from trivium.nn.mixers import MixerModule as MixerModule
from trivium.nn.mixers.attention import AttentionModule as AttentionModule
from trivium.nn.mixers.attention import CrossAttention as CrossAttention
from trivium.nn.norm import build_norm as build_norm
from trivium.nn.part import PartModule as PartModule
from trivium.nn.positions import PositionsModule as PositionsModule
from trivium.nn.sequence_info import EncoderOutput as EncoderOutput
from trivium.nn.sequence_info import LayerContext as LayerContext
from trivium.nn.sequence_info import SequenceInfo as SequenceInfo
from trivium.nn.state import Cache as Cache
from trivium.nn.state import State as State
