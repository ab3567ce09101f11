"""Heads: what a model predicts from its hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trivium.errors import SpecError
from trivium.spec.parts import Activation, Count, Norm, Part, Positive


class Dense(Part):
    """A layer before a head's projection: act(h W + b), then a norm where it has one."""

    activation: Activation
    bias: bool = True
    norm: bool = False


class LMHead(Part):
    """Logits of the next token, through the embedding's matrix if tied (T5: times `scale`)."""

    kind: Literal["lm"] = "lm"
    tied: bool
    bias: bool = False
    scale: Positive = 1.0


class MLMHead(Part):
    """Logits of masked tokens: dense, activation, norm, projection with a bias (BERT).

    Without a dense layer the projection reads the hidden states.
    """

    kind: Literal["mlm"] = "mlm"
    dense: Dense | None = None
    tied: bool = True
    bias: bool = True


class PoolerHead(Part):
    """tanh(dense(first position)): a vector for the whole text (BERT)."""

    kind: Literal["pooler"] = "pooler"


class NSPHead(Part):
    """Is B the next sentence of A (BERT), or are they in order (ALBERT): pooler, two logits."""

    kind: Literal["nsp"] = "nsp"


Pooling = Literal["first", "last", "mean"]


class ClassifierHead(Part):
    """`num_labels` logits for a text: one hidden state, a dense layer or none, a projection.

    `pooling`: the first position (BERT), the last real one (GPT, BART), or the mean of all real
    ones (a choice of ModernBERT).
    """

    kind: Literal["classifier"] = "classifier"
    num_labels: Count
    pooling: Pooling
    dense: Dense | None = None
    bias: bool = True


class TaggerHead(Part):
    """`num_labels` logits for every position."""

    kind: Literal["tagger"] = "tagger"
    num_labels: Count
    dense: Dense | None = None


class SpanHead(Part):
    """Two logits for every position: does the answer begin here, does it end here."""

    kind: Literal["span"] = "span"
    dense: Dense | None = None


class ReplacedTokenHead(Part):
    """One logit for every position: is this token another than the text had (ELECTRA)."""

    kind: Literal["replaced-token"] = "replaced-token"
    activation: Activation = "gelu"


Head = Annotated[
    LMHead
    | MLMHead
    | PoolerHead
    | NSPHead
    | ClassifierHead
    | TaggerHead
    | SpanHead
    | ReplacedTokenHead,
    Field(discriminator="kind"),
]


def one_of_each_kind(heads: tuple[Head, ...]) -> tuple[Head, ...]:
    """The heads. Raises SpecError for two of one kind."""
    kinds = [head.kind for head in heads]
    if len(set(kinds)) < len(kinds):
        raise SpecError(f"heads holds {kinds}: a model has at most one head of each kind.")
    return heads


Heads = Annotated[tuple[Head, ...], AfterValidator(one_of_each_kind)]


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
    projects: bool
    norm: Norm | None
    dropout: float
