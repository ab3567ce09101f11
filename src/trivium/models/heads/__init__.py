"""Kinds of heads: what a model predicts from its hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, SerializeAsAny
from torch import Tensor, nn

from trivium.choice import Choice, import_members
from trivium.errors import SpecError
from trivium.nn.activations import Activation, build_activation
from trivium.nn.norm import Norm, build_norm
from trivium.nn.part import Part, PartModule


class Head(Choice, Part):
    """What reads hidden states."""

    predicts: ClassVar[bool] = True
    """Whether it has logits; a mix of layers is read by other heads."""
    reads_both_sides: ClassVar[bool] = False
    """Whether it predicts from both sides of a token: not for a model that reads the left alone."""
    global_tokens: ClassVar[Literal["first", "question"] | None] = None
    """What a model with global tokens (`Mixer.has_global_tokens`) makes global for its task: the
    first token, or the question of a pair (Beltagy et al. 2020, section 3.1)."""

    def build(self, inputs: HeadInput) -> PartModule:
        """Return the module that reads hidden states of the sizes in `inputs`."""
        raise NotImplementedError


class Dense(Part):
    """A layer before a head's projection: act(h W + b), then a norm where it has one."""

    activation: Activation
    bias: bool = True
    norm: bool = False


def one_of_each_kind(heads: tuple[Head, ...]) -> tuple[Head, ...]:
    """The heads. Raises SpecError for two of one kind."""
    kinds = [head.kind for head in heads]
    if len(set(kinds)) < len(kinds):
        raise SpecError(f"heads holds {kinds}: a model has at most one head of each kind.")
    return heads


Heads = Annotated[tuple[SerializeAsAny[Head], ...], AfterValidator(one_of_each_kind)]


@dataclass(frozen=True)
class HeadInput:
    """The sizes and parts that follow from a model and that its heads are built with.

    Args:
        vocab_size: entries of the vocabulary.
        d_model: width of the hidden states that a head reads.
        d_embedding: width of the rows of the vocabulary matrix.
        projects: whether an LM head has a matrix from d_model to d_embedding.
        norm: the norm of a head that has one; None where the model has none.
        dropout: before a head's last projection.
    """

    vocab_size: int
    d_model: int
    d_embedding: int
    projects: bool = False
    norm: Norm | None = None
    dropout: float = 0.0


class DenseLayer(nn.Module):
    """act(h W + b), then a norm where the spec has one."""

    def __init__(self, dense: Dense, inputs: HeadInput, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs.d_model, outputs, bias=dense.bias)
        self.activation = build_activation(dense.activation)
        self.norm = build_norm(inputs.norm if dense.norm else None, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., outputs]."""
        return self.norm(self.activation(self.linear(hidden)))


def build_dense(dense: Dense | None, inputs: HeadInput, outputs: int) -> nn.Module:
    """The layer of a head; without one the identity, or a matrix to vectors of another width."""
    if dense is not None:
        return DenseLayer(dense, inputs, outputs)
    same = inputs.d_model == outputs
    return nn.Identity() if same else nn.Linear(inputs.d_model, outputs, bias=False)


import_members(__name__, __path__)
