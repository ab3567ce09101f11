"""Import all configuration classes of models from one module.

The configuration of a model is its spec, such as `TransformerSpec`. A spec is frozen and made of
configurations of parts: mixers, positions, patterns, feed-forward networks, norms, blocks, heads
and an initialization. Each class is defined next to the module that its `build` returns, in a file
of `trivium.nn` or `trivium.models`. Derived values are properties of the spec, such as its family.

>>> from trivium.presets import presets
>>> presets["gpt2"].family
'decoder-only'
"""

from __future__ import annotations

from trivium.models.attention_rnn import AttentionRNNSpec as AttentionRNNSpec
from trivium.models.base_model import Spec as Spec
from trivium.models.heads import Dense as Dense
from trivium.models.heads import Head as Head
from trivium.models.heads import HeadInput as HeadInput
from trivium.models.heads.scalar_mix import ScalarMix as ScalarMix
from trivium.models.heads.text import ClassifierHead as ClassifierHead
from trivium.models.heads.text import ClassifierPooling as ClassifierPooling
from trivium.models.heads.text import NSPHead as NSPHead
from trivium.models.heads.text import PoolerHead as PoolerHead
from trivium.models.heads.text import Pooling as Pooling
from trivium.models.heads.text import VectorHead as VectorHead
from trivium.models.heads.text import VectorLayer as VectorLayer
from trivium.models.heads.tokens import ReplacedTokenHead as ReplacedTokenHead
from trivium.models.heads.tokens import SpanHead as SpanHead
from trivium.models.heads.tokens import TaggerHead as TaggerHead
from trivium.models.heads.vocabulary import LMHead as LMHead
from trivium.models.heads.vocabulary import MLMHead as MLMHead
from trivium.models.initialization import FanIn as FanIn
from trivium.models.initialization import Initialization as Initialization
from trivium.models.initialization import Normal as Normal
from trivium.models.initialization import Small as Small
from trivium.models.initialization import Xavier as Xavier
from trivium.models.ngram import NGramSpec as NGramSpec
from trivium.models.ngram_counts import NGramCountsSpec as NGramCountsSpec
from trivium.models.rnn import RNNSpec as RNNSpec
from trivium.models.stack import Embedding as Embedding
from trivium.models.stack import Factorised as Factorised
from trivium.models.stack import Stack as Stack
from trivium.models.transformer import TransformerSpec as TransformerSpec
from trivium.nn.activations import Activation as Activation
from trivium.nn.activations import Swish as Swish
from trivium.nn.blocks import BlockKind as BlockKind
from trivium.nn.blocks import Layer as Layer
from trivium.nn.blocks import NormPlacement as NormPlacement
from trivium.nn.blocks import ParallelLayers as ParallelLayers
from trivium.nn.blocks import SequentialLayers as SequentialLayers
from trivium.nn.character_embedding import CharacterCNN as CharacterCNN
from trivium.nn.feed_forwards import FeedForward as FeedForward
from trivium.nn.feed_forwards.channel_mixing import ChannelMixing as ChannelMixing
from trivium.nn.feed_forwards.experts import Experts as Experts
from trivium.nn.feed_forwards.mlp import MLP as MLP
from trivium.nn.mixers import Mixer as Mixer
from trivium.nn.mixers.attention import Attention as Attention
from trivium.nn.mixers.block_sparse_attention import BlockSparseAttention as BlockSparseAttention
from trivium.nn.mixers.global_attention import GlobalAttention as GlobalAttention
from trivium.nn.mixers.latent_attention import LatentAttention as LatentAttention
from trivium.nn.mixers.linformer import Linformer as Linformer
from trivium.nn.mixers.mamba import Mamba as Mamba
from trivium.nn.mixers.mamba2 import Mamba2 as Mamba2
from trivium.nn.mixers.performer import Performer as Performer
from trivium.nn.mixers.time_mixing import TimeMixing as TimeMixing
from trivium.nn.mixers.transformer_xl_attention import (
    TransformerXLAttention as TransformerXLAttention,
)
from trivium.nn.norm import LayerNorm as LayerNorm
from trivium.nn.norm import Norm as Norm
from trivium.nn.norm import RMSNorm as RMSNorm
from trivium.nn.norm import UnbiasedLayerNorm as UnbiasedLayerNorm
from trivium.nn.part import Part as Part
from trivium.nn.patterns import Fixed as Fixed
from trivium.nn.patterns import Pattern as Pattern
from trivium.nn.patterns import PerHead as PerHead
from trivium.nn.patterns import Sliding as Sliding
from trivium.nn.patterns import Strided as Strided
from trivium.nn.positions import AbsolutePositions as AbsolutePositions
from trivium.nn.positions import Positions as Positions
from trivium.nn.positions.alibi import ALiBi as ALiBi
from trivium.nn.positions.disentangled import Disentangled as Disentangled
from trivium.nn.positions.learned import Learned as Learned
from trivium.nn.positions.relative_bias import RelativeBias as RelativeBias
from trivium.nn.positions.rotary import DynamicScaling as DynamicScaling
from trivium.nn.positions.rotary import LinearScaling as LinearScaling
from trivium.nn.positions.rotary import Llama3Scaling as Llama3Scaling
from trivium.nn.positions.rotary import LongRopeScaling as LongRopeScaling
from trivium.nn.positions.rotary import Rotary as Rotary
from trivium.nn.positions.rotary import RotaryScaling as RotaryScaling
from trivium.nn.positions.rotary import YarnScaling as YarnScaling
from trivium.nn.positions.sinusoidal import Sinusoidal as Sinusoidal
from trivium.nn.positions.transformer_xl import TransformerXLPositions as TransformerXLPositions
from trivium.nn.positions.two_dimensional import TwoDimensional as TwoDimensional
from trivium.nn.positions.two_dimensional_rotary import TwoDimensionalRotary as TwoDimensionalRotary
from trivium.nn.positions.xlnet import XLNetPositions as XLNetPositions
