"""Kinds of heads, which map the hidden states of a model to predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, SerializeAsAny
from torch import Tensor, nn

from trivium.choice import Choice, import_submodules
from trivium.errors import SpecError
from trivium.nn.activations import Activation, Swish, build_activation
from trivium.nn.norm import Norm, build_norm
from trivium.nn.part import Part, PartModule


class Head(Choice, Part):
    """Base class of the specs of heads, which compute predictions from hidden states."""

    predicts: ClassVar[bool] = True
    """Whether the head returns logits; `ScalarMix` and `VectorHead` return vectors."""
    needs_bidirectional: ClassVar[bool] = False
    """Whether the head needs bidirectional context and cannot be used in a causal model."""
    global_tokens: ClassVar[Literal["first", "question"] | None] = None
    """The tokens with global attention for the head's task, in a model that supports it: the first
    token, or the question of a pair (Beltagy et al. 2020, section 3.1); None: not set."""

    def build(self, inputs: HeadInput) -> PartModule:
        """Return the module of the head for a model whose sizes and settings are `inputs`."""
        raise NotImplementedError


class Dense(Part):
    """Spec of a dense layer before a head's projection: act(h W + b), then an optional norm."""

    activation: Activation | Swish
    bias: bool = True
    norm: bool = False


def check_distinct_kinds(heads: tuple[Head, ...]) -> tuple[Head, ...]:
    """Return the heads unchanged. Raises SpecError if two heads have the same kind."""
    kinds = [head.kind for head in heads]
    if len(set(kinds)) < len(kinds):
        raise SpecError(f"heads holds {kinds}: a model has at most one head of each kind.")
    return heads


Heads = Annotated[tuple[SerializeAsAny[Head], ...], AfterValidator(check_distinct_kinds)]


@dataclass(frozen=True)
class HeadInput:
    """The sizes and settings of a model that the modules of its heads are built with.

    Args:
        vocab_size: vocabulary size.
        d_model: width of the hidden states that a head reads.
        d_embedding: width of the rows of the output matrix (tied: of the token embeddings).
        projects: whether an LM head has a projection from d_model to d_embedding.
        norm: the kind of norm for heads with a norm; None if the model has no norm.
        dropout: dropout rate of the input of a head's last projection.
    """

    vocab_size: int
    d_model: int
    d_embedding: int
    projects: bool = False
    norm: Norm | None = None
    dropout: float = 0.0


class DenseLayer(nn.Module):
    """Module of a `Dense` layer: act(h W + b), then a norm if the spec has one."""

    def __init__(self, dense: Dense, inputs: HeadInput, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs.d_model, outputs, bias=dense.bias)
        self.activation = build_activation(dense.activation)
        self.norm = build_norm(inputs.norm if dense.norm else None, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the layer's outputs [..., outputs] for hidden states [..., D]."""
        return self.norm(self.activation(self.linear(hidden)))


def build_dense(dense: Dense | None, inputs: HeadInput, outputs: int) -> nn.Module:
    """Return the module of a head's dense layer.

    If `dense` is None, the result is the identity or, if the widths differ, a projection.
    """
    if dense is not None:
        return DenseLayer(dense, inputs, outputs)
    same = inputs.d_model == outputs
    return nn.Identity() if same else nn.Linear(inputs.d_model, outputs, bias=False)


import_submodules(__name__, __path__)
