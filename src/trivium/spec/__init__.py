"""The frozen description of a model, and what follows from it.

A model is a sentence in a small vocabulary of parts. Every choice is a part (a member of a closed
union, told apart by its `kind`), never a flag, and whatever can be derived is derived: which
family it is, who sees whom, how many parameters it has and what a token costs.

>>> from trivium.presets import presets
>>> presets["gpt2"].family, presets["gpt2"].num_parameters
('decoder-only', 124439808)
"""

from __future__ import annotations

from trivium.spec.any_spec import AnySpec, spec_from_dict
from trivium.spec.head_input import HeadInput
from trivium.spec.model import ModelSpec
from trivium.spec.parts import (
    AbsolutePositions,
    Activation,
    ALiBi,
    Attention,
    ClassifierHead,
    Dense,
    Embedding,
    Factorised,
    FanIn,
    FeedForward,
    Full,
    Head,
    Initialization,
    LayerNorm,
    Learned,
    LinearScaling,
    Llama3Scaling,
    LMHead,
    MLMHead,
    Norm,
    Normal,
    NSPHead,
    Part,
    Pattern,
    PoolerHead,
    RelativeBias,
    RelativePositions,
    ReplacedTokenHead,
    RMSNorm,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    Sliding,
    SpanHead,
    Stack,
    Swish,
    TaggerHead,
    Xavier,
    describe_validation,
)
from trivium.spec.recurrent import NGramSpec, RNNSpec

__all__ = [
    "ALiBi",
    "AbsolutePositions",
    "Activation",
    "AnySpec",
    "Attention",
    "ClassifierHead",
    "Dense",
    "Embedding",
    "Factorised",
    "FanIn",
    "FeedForward",
    "Full",
    "Head",
    "HeadInput",
    "Initialization",
    "LMHead",
    "LayerNorm",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "MLMHead",
    "ModelSpec",
    "NGramSpec",
    "NSPHead",
    "Norm",
    "Normal",
    "Part",
    "Pattern",
    "PoolerHead",
    "RMSNorm",
    "RNNSpec",
    "RelativeBias",
    "RelativePositions",
    "ReplacedTokenHead",
    "Rotary",
    "RotaryScaling",
    "Sinusoidal",
    "Sliding",
    "SpanHead",
    "Stack",
    "Swish",
    "TaggerHead",
    "Xavier",
    "describe_validation",
    "spec_from_dict",
]
