"""What turns hidden states into answers: logits of the vocabulary, of labels, of spans.

Shape letters: B batch, T positions, D d_model, E width of token vectors, V vocabulary, L labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.nn.feed_forward import build_activation
from trivium.nn.inference_linear import InferenceLinear
from trivium.nn.norm import build_norm


class Dense(nn.Module):
    """act(h W + b), then a norm where the description has one."""

    def __init__(self, dense: spec.Dense, given: spec.HeadInput, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(given.d_model, outputs, bias=dense.bias)
        self.activation = build_activation(dense.activation)
        self.norm = build_norm(given.norm if dense.norm else None, outputs)

    def start_as_identity(self) -> None:
        """Begin near h: where gelu is straight; the norm takes the offset away."""
        nn.init.eye_(self.linear.weight)
        if self.linear.bias is not None:
            nn.init.constant_(self.linear.bias, 3.0)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., outputs]."""
        return self.norm(self.activation(self.linear(hidden)))


class VocabularyHead(nn.Module):
    """Logits = f(h) E^T + c, with E the table of token vectors if tied, else one of its own."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    product: InferenceLinear | None
    """The product with the matrix, and the bias, where the weights were packed or quantised."""

    def __init__(self, given: spec.HeadInput, *, tied: bool, bias: bool) -> None:
        super().__init__()
        self.tied, shape = tied, (given.vocab_size, given.d_embedding)
        self.weight = None if tied else nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(given.vocab_size)) if bias else None
        self.product = None

    def forward(self, hidden: Tensor) -> Tensor:
        """The features f(h) that meet the vocabulary matrix: [..., D] -> [..., E]."""
        raise NotImplementedError


class LMHead(VocabularyHead):
    """f(h) = scale * h, through the matrix between widths where token vectors have their own."""

    def __init__(self, head: spec.LMHead, given: spec.HeadInput) -> None:
        super().__init__(given, tied=head.tied, bias=head.bias)
        self.scale, self.narrow = head.scale, None
        if given.narrows:
            self.narrow = nn.Linear(given.d_model, given.d_embedding, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., E]."""
        if self.narrow is not None:
            hidden = self.narrow(hidden)
        return hidden if self.scale == 1.0 else hidden * self.scale


class MLMHead(VocabularyHead):
    """f(h) = norm(act(h W + b)) (Devlin et al. 2018, as released); f(h) = h without it."""

    def __init__(self, head: spec.MLMHead, given: spec.HeadInput) -> None:
        super().__init__(given, tied=head.tied, bias=head.bias)
        self.dense = Dense(head.dense, given, given.d_embedding) if head.dense else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., E]."""
        return self.dense(hidden)


class Pooler(nn.Module):
    """tanh(h_first W + b) (Devlin et al. 2018)."""

    def __init__(self, given: spec.HeadInput) -> None:
        super().__init__()
        self.linear = nn.Linear(given.d_model, given.d_model)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, D]."""
        return torch.tanh(self.linear(hidden[:, 0]))


class NSPHead(nn.Module):
    """Two logits (is next, is not) of the pooled text (Devlin et al. 2018)."""

    def __init__(self, given: spec.HeadInput) -> None:
        super().__init__()
        self.pooler = Pooler(given)
        self.classifier = nn.Linear(given.d_model, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, 2]."""
        return self.classifier(self.pooler(hidden))


class ClassifierHead(nn.Module):
    """Label logits of one vector a text."""

    def __init__(self, head: spec.ClassifierHead, given: spec.HeadInput) -> None:
        super().__init__()
        self.pooling, self.dropout = head.pooling, nn.Dropout(given.dropout)
        self.dense = Dense(head.dense, given, given.d_model) if head.dense else nn.Identity()
        self.classifier = nn.Linear(given.d_model, head.num_labels, bias=head.bias)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, L]; the mask [B, T] says which positions are real."""
        pooled = pool(hidden, attention_mask, self.pooling)
        return self.classifier(self.dropout(self.dense(pooled)))


class PositionHead(nn.Module):
    """Logits of every position: labels of words, ends of spans, replaced or not."""

    def __init__(self, dense: spec.Dense | None, given: spec.HeadInput, outputs: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(given.dropout)
        self.dense = Dense(dense, given, given.d_model) if dense else nn.Identity()
        self.classifier = nn.Linear(given.d_model, outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, T, L]."""
        return self.classifier(self.dropout(self.dense(hidden)))


def pool(hidden: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """One vector a text, of its first, its last or all real positions: [B, T, D] -> [B, D]."""
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


def build_head(head: spec.Head, given: spec.HeadInput) -> nn.Module:
    """The module that a head's description stands for."""
    match head:
        case spec.LMHead():
            return LMHead(head, given)
        case spec.MLMHead():
            return MLMHead(head, given)
        case spec.PoolerHead():
            return Pooler(given)
        case spec.NSPHead():
            return NSPHead(given)
        case spec.ClassifierHead():
            return ClassifierHead(head, given)
        case spec.TaggerHead():
            return PositionHead(head.dense, given, head.num_labels)
        case spec.SpanHead():
            return PositionHead(head.dense, given, 2)
        case spec.ReplacedTokenHead():
            return PositionHead(spec.Dense(activation=head.activation), given, 1)
