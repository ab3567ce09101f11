"""Heads that read a whole text."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trivium.spec.heads import Dense, Head
from trivium.spec.part import Count


class PoolerHead(Head):
    """tanh(dense(first position)): a vector for the whole text (BERT)."""

    kind: Literal["pooler"] = "pooler"


class NSPHead(Head):
    """Is B the next sentence of A (BERT), or are they in order (ALBERT): pooler, two logits."""

    reads_both_sides: ClassVar[bool] = True
    kind: Literal["nsp"] = "nsp"


Pooling = Literal["first", "last", "mean"]
ClassifierPooling = Literal[Pooling, "concat"]


class ClassifierHead(Head):
    """`num_labels` logits for a text: one hidden state, a dense layer or none, a projection.

    `pooling`: the first position (BERT), the last real one (GPT, BART), the mean of all real ones
    (a choice of ModernBERT), or "concat", the last with the maximum and the mean of all (ULMFiT).
    """

    global_tokens: ClassVar[Literal["first", "question"] | None] = "first"
    kind: Literal["classifier"] = "classifier"
    num_labels: Count
    pooling: ClassifierPooling
    dense: Dense | None = None
    bias: bool = True


class VectorLayer(Dense):
    """act(v W + b), a vector of `width` numbers."""

    width: Count
    # Those that `sentence-transformers` has.
    activation: Literal["identity", "tanh", "relu", "gelu", "silu"]  # type: ignore[assignment]
    norm: Literal[False] = False  # type: ignore[assignment]


class VectorHead(Head):
    """Layers that the pooled vector of a text passes before `embed` scales it (`Dense` modules)."""

    predicts: ClassVar[bool] = False
    kind: Literal["vector"] = "vector"
    layers: Annotated[tuple[VectorLayer, ...], Field(min_length=1)]
