"""All configuration classes of models under one name, for users.

The configuration of a model is its spec, such as `ModelSpec`. A spec is frozen and made of
configurations of parts: mixers, positions, patterns, feed-forward networks, norms, blocks, heads
and an initialization. Each class is defined beside the module that its `build` returns, in a file
of `trivium.nn` or `trivium.models`. What follows from a spec is a property, such as its family.

>>> from trivium.presets import presets
>>> presets["gpt2"].family
'decoder-only'
"""

from __future__ import annotations

from trivium.models.attention_rnn import AttentionRNNSpec
from trivium.models.base_model import Spec
from trivium.models.heads import Dense, Head, HeadInput
from trivium.models.heads.scalar_mix import ScalarMix
from trivium.models.heads.text import (
    ClassifierHead,
    ClassifierPooling,
    NSPHead,
    PoolerHead,
    Pooling,
    VectorHead,
    VectorLayer,
)
from trivium.models.heads.tokens import ReplacedTokenHead, SpanHead, TaggerHead
from trivium.models.heads.vocabulary import LMHead, MLMHead
from trivium.models.initialization import FanIn, Initialization, Normal, Small, Xavier
from trivium.models.ngram import NGramSpec
from trivium.models.ngram_counts import NGramCountsSpec
from trivium.models.rnn import RNNSpec
from trivium.models.stack import Embedding, Factorised, Stack
from trivium.models.transformer import ModelSpec
from trivium.nn.activations import Activation, Swish
from trivium.nn.blocks import BlockKind, Layer, NormPlacement, ParallelLayers, SequentialLayers
from trivium.nn.character_embedding import CharacterCNN
from trivium.nn.feed_forwards import Positionwise
from trivium.nn.feed_forwards.channel_mixing import ChannelMixing
from trivium.nn.feed_forwards.experts import Experts
from trivium.nn.feed_forwards.feed_forward import FeedForward
from trivium.nn.mixers import Mixer
from trivium.nn.mixers.attention import Attention
from trivium.nn.mixers.block_sparse_attention import BlockSparseAttention
from trivium.nn.mixers.global_attention import GlobalAttention
from trivium.nn.mixers.latent_attention import LatentAttention
from trivium.nn.mixers.linformer import Linformer
from trivium.nn.mixers.mamba import Mamba
from trivium.nn.mixers.memory_attention import MemoryAttention, SegmentAttention
from trivium.nn.mixers.performer import Performer
from trivium.nn.mixers.time_mixing import TimeMixing
from trivium.nn.norm import DeviationNorm, LayerNorm, Norm, RMSNorm
from trivium.nn.part import Part
from trivium.nn.patterns import Fixed, Pattern, PerHead, Sliding, Strided
from trivium.nn.positions import AbsolutePositions, Positions
from trivium.nn.positions.alibi import ALiBi
from trivium.nn.positions.disentangled import Disentangled
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.relative_bias import RelativeBias
from trivium.nn.positions.relative_scores import RelativeScores
from trivium.nn.positions.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    RotaryScaling,
    YarnScaling,
)
from trivium.nn.positions.sinusoidal import Sinusoidal
from trivium.nn.positions.two_dimensional import TwoDimensional
from trivium.nn.positions.typed_relative_scores import TypedRelativeScores

__all__ = [
    "ALiBi",
    "AbsolutePositions",
    "Activation",
    "Attention",
    "AttentionRNNSpec",
    "BlockKind",
    "BlockSparseAttention",
    "ChannelMixing",
    "CharacterCNN",
    "ClassifierHead",
    "ClassifierPooling",
    "Dense",
    "DeviationNorm",
    "Disentangled",
    "DynamicScaling",
    "Embedding",
    "Experts",
    "Factorised",
    "FanIn",
    "FeedForward",
    "Fixed",
    "GlobalAttention",
    "Head",
    "HeadInput",
    "Initialization",
    "LMHead",
    "LatentAttention",
    "Layer",
    "LayerNorm",
    "Learned",
    "LinearScaling",
    "Linformer",
    "Llama3Scaling",
    "LongRopeScaling",
    "MLMHead",
    "Mamba",
    "MemoryAttention",
    "Mixer",
    "ModelSpec",
    "NGramCountsSpec",
    "NGramSpec",
    "NSPHead",
    "Norm",
    "NormPlacement",
    "Normal",
    "ParallelLayers",
    "Part",
    "Pattern",
    "PerHead",
    "Performer",
    "PoolerHead",
    "Pooling",
    "Positions",
    "Positionwise",
    "RMSNorm",
    "RNNSpec",
    "RelativeBias",
    "RelativeScores",
    "ReplacedTokenHead",
    "Rotary",
    "RotaryScaling",
    "ScalarMix",
    "SegmentAttention",
    "SequentialLayers",
    "Sinusoidal",
    "Sliding",
    "Small",
    "SpanHead",
    "Spec",
    "Stack",
    "Strided",
    "Swish",
    "TaggerHead",
    "TimeMixing",
    "TwoDimensional",
    "TypedRelativeScores",
    "VectorHead",
    "VectorLayer",
    "Xavier",
    "YarnScaling",
]
