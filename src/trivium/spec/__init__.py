"""The frozen spec of a model, and what follows from it.

A model is a sentence in a small vocabulary of parts. Every choice is a part (a member of a closed
union with its own `kind`), never a flag, and whatever can be derived is derived: the family, which
position attends to which.

>>> from trivium.presets import presets
>>> presets["gpt2"].family
'decoder-only'
"""

from __future__ import annotations

from typing import Any

from trivium.errors import SpecError, did_you_mean
from trivium.spec.head_parts import (
    ClassifierHead,
    Dense,
    Head,
    HeadInput,
    LMHead,
    MLMHead,
    NSPHead,
    PoolerHead,
    Pooling,
    ReplacedTokenHead,
    SpanHead,
    TaggerHead,
)
from trivium.spec.model_spec import ModelSpec
from trivium.spec.parts import (
    Activation,
    ALiBi,
    Attention,
    Embedding,
    Factorised,
    FanIn,
    FeedForward,
    Full,
    LayerNorm,
    Learned,
    LinearScaling,
    Llama3Scaling,
    Norm,
    Normal,
    Part,
    Pattern,
    RelativeBias,
    RelativePositions,
    RMSNorm,
    Rotary,
    Sinusoidal,
    Sliding,
    Stack,
    Swish,
    Xavier,
)
from trivium.spec.sequence_spec import NGramSpec, RNNSpec

__all__ = [
    "ALiBi",
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
    "Pooling",
    "RMSNorm",
    "RNNSpec",
    "RelativeBias",
    "RelativePositions",
    "ReplacedTokenHead",
    "Rotary",
    "Sinusoidal",
    "Sliding",
    "SpanHead",
    "Stack",
    "Swish",
    "TaggerHead",
    "Xavier",
    "spec_from_dict",
]

AnySpec = ModelSpec | RNNSpec | NGramSpec

_KINDS: dict[str, type[ModelSpec] | type[RNNSpec] | type[NGramSpec]] = {
    "transformer": ModelSpec,
    "rnn": RNNSpec,
    "n-gram": NGramSpec,
}


def spec_from_dict(data: dict[str, Any]) -> AnySpec:
    """The inverse of every spec's `to_dict`. Without a `kind` it is a Transformer.

    Raises:
        SpecError: an unknown kind, or a field that does not fit.
    """
    kind = data.get("kind", "transformer")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = ", ".join(f'"{name}"' for name in _KINDS)
        raise SpecError(
            f"model spec: kind is {kind!r}; allowed: {known}.{did_you_mean(str(kind), _KINDS)}"
        )
    return _KINDS[kind].from_dict(data)
