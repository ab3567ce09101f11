"""Heads: logits of the vocabulary, of labels, of spans, from hidden states.

Shape letters: B batch, T positions, D d_model, E width of token vectors, V vocabulary, L labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.nn.feed_forward import build_activation
from trivium.nn.norm import build_norm


class DenseLayer(nn.Module):
    """act(h W + b), then a norm where the spec has one."""

    def __init__(self, dense: spec.Dense, inputs: spec.HeadInput, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs.d_model, outputs, bias=dense.bias)
        self.activation = build_activation(dense.activation)
        self.norm = build_norm(inputs.norm if dense.norm else None, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., outputs]."""
        return self.norm(self.activation(self.linear(hidden)))


def _build_dense(dense: spec.Dense | None, inputs: spec.HeadInput, outputs: int) -> nn.Module:
    return nn.Identity() if dense is None else DenseLayer(dense, inputs, outputs)


class VocabularyHead(nn.Module):
    """Logits = f(h) E^T + c, with E the table of token vectors if tied, else a matrix of its own.

    `forward` is f. `packed` is the product with E and c of a model packed for inference.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, inputs: spec.HeadInput, *, tied: bool, bias: bool) -> None:
        super().__init__()
        shape = inputs.vocab_size, inputs.d_embedding
        self.weight = None if tied else nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(inputs.vocab_size)) if bias else None
        self.packed: nn.Module | None = None


class CausalHead(VocabularyHead):
    """f(h) = scale * h, through a matrix where token vectors have a width of their own."""

    def __init__(self, head: spec.LMHead, inputs: spec.HeadInput) -> None:
        super().__init__(inputs, tied=head.tied, bias=head.bias)
        self.scale, self.projection = head.scale, None
        if inputs.projects:
            self.projection = nn.Linear(inputs.d_model, inputs.d_embedding, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., E]."""
        if self.projection is not None:
            hidden = self.projection(hidden)
        return hidden if self.scale == 1.0 else hidden * self.scale


class MaskedHead(VocabularyHead):
    """f(h) = norm(act(h W + b)) (Devlin et al. 2018, as released); f(h) = h without it."""

    def __init__(self, head: spec.MLMHead, inputs: spec.HeadInput) -> None:
        super().__init__(inputs, tied=head.tied, bias=head.bias)
        self.dense = _build_dense(head.dense, inputs, inputs.d_embedding)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., E]."""
        return self.dense(hidden)


class Pooler(nn.Module):
    """tanh(h_first W + b) (Devlin et al. 2018)."""

    def __init__(self, inputs: spec.HeadInput) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs.d_model, inputs.d_model)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, D]."""
        return torch.tanh(self.linear(hidden[:, 0]))


class NextSentenceHead(nn.Module):
    """Two logits (is next, is not) of the pooled text (Devlin et al. 2018)."""

    def __init__(self, inputs: spec.HeadInput) -> None:
        super().__init__()
        self.pooler = Pooler(inputs)
        self.classifier = nn.Linear(inputs.d_model, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, 2]."""
        return self.classifier(self.pooler(hidden))


class TextClassifier(nn.Module):
    """Label logits of one vector per text."""

    def __init__(self, head: spec.ClassifierHead, inputs: spec.HeadInput) -> None:
        super().__init__()
        self.pooling: spec.Pooling = head.pooling
        self.dropout = nn.Dropout(inputs.dropout)
        self.dense = _build_dense(head.dense, inputs, inputs.d_model)
        self.classifier = nn.Linear(inputs.d_model, head.num_labels, bias=head.bias)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, L]; the mask [B, T] is nonzero where a token is real."""
        pooled = pool(hidden, attention_mask, self.pooling)
        return self.classifier(self.dropout(self.dense(pooled)))


class TokenClassifier(nn.Module):
    """Logits of every position: labels of tokens, start and end of spans, replaced or not."""

    def __init__(self, dense: spec.Dense | None, inputs: spec.HeadInput, outputs: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(inputs.dropout)
        self.dense = _build_dense(dense, inputs, inputs.d_model)
        self.classifier = nn.Linear(inputs.d_model, outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, T, L]."""
        return self.classifier(self.dropout(self.dense(hidden)))


def pool(hidden: Tensor, attention_mask: Tensor | None, pooling: spec.Pooling) -> Tensor:
    """One vector per text, of its first, its last or all real positions: [B, T, D] -> [B, D]."""
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


def build_head(head: spec.Head, inputs: spec.HeadInput) -> nn.Module:
    """The module of a spec's head."""
    match head:
        case spec.LMHead():
            return CausalHead(head, inputs)
        case spec.MLMHead():
            return MaskedHead(head, inputs)
        case spec.PoolerHead():
            return Pooler(inputs)
        case spec.NSPHead():
            return NextSentenceHead(inputs)
        case spec.ClassifierHead():
            return TextClassifier(head, inputs)
        case spec.TaggerHead():
            return TokenClassifier(head.dense, inputs, head.num_labels)
        case spec.SpanHead():
            return TokenClassifier(head.dense, inputs, 2)
        case spec.ReplacedTokenHead():
            return TokenClassifier(spec.Dense(activation=head.activation), inputs, 1)
