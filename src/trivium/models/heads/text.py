"""Heads that make one prediction per text.

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
    """A vector for the whole text, tanh(h W + b), from the first hidden state h (BERT)."""

    kind: Literal["pooler"] = "pooler"

    def build(self, inputs: HeadInput) -> Pooler:
        """Return the module of the head (see `Head.build`)."""
        return Pooler(self, inputs)


class NSPHead(Head):
    """Two logits per text pair: does B follow A (BERT), or is their order right (ALBERT)?"""

    needs_bidirectional: ClassVar[bool] = True
    kind: Literal["nsp"] = "nsp"

    def build(self, inputs: HeadInput) -> NextSentenceHead:
        """Return the module of the head (see `Head.build`)."""
        return NextSentenceHead(self, inputs)


Pooling = Literal["first", "last", "mean"]
ClassifierPooling = Literal[Pooling, "concat"]


class ClassifierHead(Head):
    """Classifier with `num_labels` logits per text: pooling, an optional dense layer, a projection.

    `pooling` selects how hidden states become one vector. "first" takes the first position (BERT),
    "last" the last position that is not padding (GPT, BART). "mean" is the mean without padding (an
    option of ModernBERT). "concat" concatenates last, maximum and mean (ULMFiT).
    """

    global_tokens: ClassVar[Literal["first", "question"] | None] = "first"
    kind: Literal["classifier"] = "classifier"
    num_labels: Count
    pooling: ClassifierPooling
    dense: Dense | None = None
    bias: bool = True

    def build(self, inputs: HeadInput) -> TextClassifier:
        """Return the module of the head (see `Head.build`)."""
        return TextClassifier(self, inputs)


class VectorLayer(Dense):
    """Spec of a layer of `VectorHead`: act(v W + b), with outputs of width `width`."""

    width: Count
    # The activations that `sentence-transformers` supports.
    activation: Literal["identity", "tanh", "relu", "gelu", "silu"]  # type: ignore[assignment]
    norm: Literal[False] = False  # type: ignore[assignment]


class VectorHead(Head):
    """Dense layers that `embed` applies to the pooled vector of a text, before normalization."""

    predicts: ClassVar[bool] = False
    kind: Literal["vector"] = "vector"
    layers: Annotated[tuple[VectorLayer, ...], Field(min_length=1)]

    def build(self, inputs: HeadInput) -> VectorLayers:
        """Return the module of the head (see `Head.build`)."""
        return VectorLayers(self, inputs)


class Pooler(PartModule):
    """Module of `PoolerHead`: tanh(h_first W + b) (Devlin et al. 2018)."""

    def __init__(self, head: Part, inputs: HeadInput) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs.d_model, inputs.d_model)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return text vectors [B, D] for hidden states [B, T, D]."""
        return torch.tanh(self.linear(hidden[:, 0]))


class NextSentenceHead(PartModule):
    """Module of `NSPHead`: projects the pooler's output to two logits (Devlin et al. 2018)."""

    def __init__(self, head: NSPHead, inputs: HeadInput) -> None:
        super().__init__()
        self.pooler = Pooler(head, inputs)
        self.classifier = nn.Linear(inputs.d_model, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return two logits per text pair, [B, 2], for hidden states [B, T, D]."""
        return self.classifier(self.pooler(hidden))


class TextClassifier(PartModule):
    """Module of `ClassifierHead`: label logits from one pooled vector per text."""

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
        """Return label logits [B, L] for hidden states [B, T, D].

        `attention_mask` [B, T] is 0 for padding.
        """
        pooled = pool(hidden, attention_mask, self.pooling)
        return self.classifier(self.dropout(self.dense(pooled)))


class VectorLayers(PartModule, nn.Sequential):
    """Module of `VectorHead`: maps pooled vectors [N, D] to [N, width of the last layer]."""

    def __init__(self, head: VectorHead, inputs: HeadInput) -> None:
        super().__init__()
        for layer in head.layers:
            self.append(DenseLayer(layer, inputs, layer.width))
            inputs = dataclasses.replace(inputs, d_model=layer.width)


def pool(hidden: Tensor, attention_mask: Tensor | None, pooling: ClassifierPooling) -> Tensor:
    """Pool the hidden states [B, T, D] of each text. Returns one vector per text, [B, D].

    Padding is ignored, except that "first" always takes position 0. "concat" returns
    [h_last, max h, mean h], [B, 3 D] (Howard and Ruder 2018, section 3.3).
    """
    if pooling == "concat":
        last, mean = (pool(hidden, attention_mask, one) for one in ("last", "mean"))
        return torch.cat([last, _max_pool(hidden, attention_mask), mean], dim=-1)
    if pooling == "first":
        return hidden[:, 0]
    if attention_mask is None:
        return hidden[:, -1] if pooling == "last" else hidden.mean(1)
    is_token = attention_mask.bool()
    if pooling == "last":
        columns = torch.arange(hidden.shape[1], device=hidden.device)
        last = (columns * is_token).argmax(1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]
    weights = is_token.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)


def _max_pool(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the maximum over all positions except padding, [B, D]; 0 if all are padding."""
    if attention_mask is None:
        return hidden.amax(1)
    is_token = attention_mask.bool()[..., None]
    return hidden.masked_fill(~is_token, -torch.inf).amax(1).masked_fill(~is_token.any(1), 0.0)
