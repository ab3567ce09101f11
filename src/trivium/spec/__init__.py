"""The frozen spec of a model, and what follows from it.

A model is a sentence in a small vocabulary of parts. Every choice is a part with its own `kind`,
never a flag: its class is a file of `mixers`, `positions`, `patterns`, `feed_forwards`, `blocks`,
`heads` or `initializations`, and found there (`Choice`). Whatever can be derived is derived: the
family, which position attends to which. The names below are those that Trivium's own presets use.

>>> from trivium.presets import presets
>>> presets["gpt2"].family
'decoder-only'
"""

from __future__ import annotations

from trivium.spec.attention_rnn_spec import AttentionRNNSpec
from trivium.spec.base_spec import Spec
from trivium.spec.blocks import BlockKind
from trivium.spec.blocks.parallel import ParallelLayers
from trivium.spec.blocks.sequential import SequentialLayers
from trivium.spec.characters import CharacterCNN
from trivium.spec.counts_spec import NGramCountsSpec
from trivium.spec.feed_forwards import Positionwise
from trivium.spec.feed_forwards.feed_forward import Activation, FeedForward, Swish
from trivium.spec.heads import Dense, Head, HeadInput
from trivium.spec.heads.scalar_mix import ScalarMix
from trivium.spec.heads.text import (
    ClassifierHead,
    ClassifierPooling,
    NSPHead,
    PoolerHead,
    Pooling,
    VectorHead,
    VectorLayer,
)
from trivium.spec.heads.tokens import ReplacedTokenHead, SpanHead, TaggerHead
from trivium.spec.heads.vocabulary import LMHead, MLMHead
from trivium.spec.initializations import Initialization
from trivium.spec.initializations.fan_in import FanIn
from trivium.spec.initializations.normal import Normal
from trivium.spec.initializations.xavier import Xavier
from trivium.spec.mixers import Mixer
from trivium.spec.mixers.attention import Attention
from trivium.spec.model_spec import ModelSpec
from trivium.spec.norms import DeviationNorm, LayerNorm, Norm, RMSNorm
from trivium.spec.part import Part
from trivium.spec.patterns import Pattern
from trivium.spec.patterns.sliding import Sliding
from trivium.spec.positions import AbsolutePositions, Positions
from trivium.spec.positions.alibi import ALiBi
from trivium.spec.positions.disentangled import Disentangled
from trivium.spec.positions.learned import Learned
from trivium.spec.positions.relative_bias import RelativeBias
from trivium.spec.positions.rotary import LinearScaling, Llama3Scaling, Rotary
from trivium.spec.positions.sinusoidal import Sinusoidal
from trivium.spec.sequence_spec import NGramSpec, RNNSpec
from trivium.spec.stack import (
    POST_NORM,
    PRE_NORM,
    Embedding,
    Factorised,
    Norms,
    Stack,
)

__all__ = [
    "POST_NORM",
    "PRE_NORM",
    "ALiBi",
    "AbsolutePositions",
    "Activation",
    "Attention",
    "AttentionRNNSpec",
    "BlockKind",
    "CharacterCNN",
    "ClassifierHead",
    "ClassifierPooling",
    "Dense",
    "DeviationNorm",
    "Disentangled",
    "Embedding",
    "Factorised",
    "FanIn",
    "FeedForward",
    "Head",
    "HeadInput",
    "Initialization",
    "LMHead",
    "LayerNorm",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "MLMHead",
    "Mixer",
    "ModelSpec",
    "NGramCountsSpec",
    "NGramSpec",
    "NSPHead",
    "Norm",
    "Normal",
    "Norms",
    "ParallelLayers",
    "Part",
    "Pattern",
    "PoolerHead",
    "Pooling",
    "Positions",
    "Positionwise",
    "RMSNorm",
    "RNNSpec",
    "RelativeBias",
    "ReplacedTokenHead",
    "Rotary",
    "ScalarMix",
    "SequentialLayers",
    "Sinusoidal",
    "Sliding",
    "SpanHead",
    "Spec",
    "Stack",
    "Swish",
    "TaggerHead",
    "VectorHead",
    "VectorLayer",
    "Xavier",
]
