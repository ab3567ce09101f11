"""Heads that read a whole text.

Shape letters: B batch, T positions, D d_model, L labels.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from trivium.models.heads import Dense, DenseLayer, Head, HeadInput, build_dense
from trivium.nn.part import Count, Part, PartModule


class PoolerHead(Head):
    """tanh(dense(first position)): a vector for the whole text (BERT)."""

    kind: Literal["pooler"] = "pooler"

    def build(self, inputs: HeadInput) -> Pooler:
        """See `Head.build`."""
        return Pooler(self, inputs)


class NSPHead(Head):
    """Is B the next sentence of A (BERT), or are they in order (ALBERT): pooler, two logits."""

    reads_both_sides: ClassVar[bool] = True
    kind: Literal["nsp"] = "nsp"

    def build(self, inputs: HeadInput) -> NextSentenceHead:
        """See `Head.build`."""
        return NextSentenceHead(self, inputs)


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

    def build(self, inputs: HeadInput) -> TextClassifier:
        """See `Head.build`."""
        return TextClassifier(self, inputs)


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

    def build(self, inputs: HeadInput) -> VectorLayers:
        """See `Head.build`."""
        return VectorLayers(self, inputs)


class Pooler(PartModule):
    """tanh(h_first W + b) (Devlin et al. 2018)."""

    def __init__(self, head: Part, inputs: HeadInput) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs.d_model, inputs.d_model)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, D]."""
        return torch.tanh(self.linear(hidden[:, 0]))


class NextSentenceHead(PartModule):
    """Two logits (is next, is not) of the pooled text (Devlin et al. 2018)."""

    def __init__(self, head: NSPHead, inputs: HeadInput) -> None:
        super().__init__()
        self.pooler = Pooler(head, inputs)
        self.classifier = nn.Linear(inputs.d_model, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, 2]."""
        return self.classifier(self.pooler(hidden))


class TextClassifier(PartModule):
    """Label logits of one vector per text."""

    def __init__(self, head: ClassifierHead, inputs: HeadInput) -> None:
        super().__init__()
        self.pooling: ClassifierPooling = head.pooling
        d_pooled = (3 if head.pooling == "concat" else 1) * inputs.d_model
        d_out = d_pooled if head.dense is None else inputs.d_model
        self.dropout = nn.Dropout(inputs.dropout)
        pooled = dataclasses.replace(inputs, d_model=d_pooled)
        self.dense = build_dense(head.dense, pooled, d_out)
        self.classifier = nn.Linear(d_out, head.num_labels, bias=head.bias)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, L]; the mask [B, T] is nonzero where a token is real."""
        pooled = pool(hidden, attention_mask, self.pooling)
        return self.classifier(self.dropout(self.dense(pooled)))


class VectorLayers(PartModule, nn.Sequential):
    """The layers that pooled vectors pass: [N, D] -> [N, width of the last layer]."""

    def __init__(self, head: VectorHead, inputs: HeadInput) -> None:
        super().__init__()
        for layer in head.layers:
            self.append(DenseLayer(layer, inputs, layer.width))
            inputs = dataclasses.replace(inputs, d_model=layer.width)


def pool(hidden: Tensor, attention_mask: Tensor | None, pooling: ClassifierPooling) -> Tensor:
    """One vector per text, of its first, its last or all real positions: [B, T, D] -> [B, D].

    "concat" is [h_last, max h, mean h], [B, 3 D] (Howard and Ruder 2018, section 3.3).
    """
    if pooling == "concat":
        last, mean = (pool(hidden, attention_mask, one) for one in ("last", "mean"))
        return torch.cat([last, _maximum(hidden, attention_mask), mean], dim=-1)
    if pooling == "first":
        return hidden[:, 0]
    if attention_mask is None:
        return hidden[:, -1] if pooling == "last" else hidden.mean(1)
    real = attention_mask.bool()
    if pooling == "last":
        columns = torch.arange(hidden.shape[1], device=hidden.device)
        last = (columns * real).argmax(1)
        return hidden[torch.arange(len(hidden), device=hidden.device), last]
    weights = real.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)


def _maximum(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The largest number of every dimension at real positions, 0 of a text without any."""
    if attention_mask is None:
        return hidden.amax(1)
    real = attention_mask.bool()[..., None]
    return hidden.masked_fill(~real, -torch.inf).amax(1).masked_fill(~real.any(1), 0.0)
