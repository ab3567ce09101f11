"""Kinds of heads: what a model predicts from its hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, SerializeAsAny

from trivium.choice import Choice, import_members
from trivium.errors import SpecError
from trivium.spec.feed_forwards.feed_forward import Activation
from trivium.spec.norms import Norm
from trivium.spec.part import Part


class Head(Choice, Part):
    """What reads hidden states; its module is in `models/heads`."""

    predicts: ClassVar[bool] = True
    """Whether it has logits; a mix of layers is read by other heads."""
    reads_both_sides: ClassVar[bool] = False
    """Whether it predicts from both sides of a token: not for a model that reads the left alone."""
    global_tokens: ClassVar[Literal["first", "question"] | None] = None
    """What a model with global tokens (`Mixer.has_global_tokens`) makes global for its task: the
    first token, or the question of a pair (Beltagy et al. 2020, section 3.1)."""


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


import_members(__name__, __path__)
