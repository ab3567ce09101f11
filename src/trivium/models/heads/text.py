"""Heads that read a whole text.

Shape letters: B batch, T positions, D d_model, L labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.models.dense import build_dense
from trivium.nn.part_module import PartModule


class Pooler(PartModule, of=spec.PoolerHead):
    """tanh(h_first W + b) (Devlin et al. 2018)."""

    def __init__(self, head: spec.Part, inputs: spec.HeadInput) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs.d_model, inputs.d_model)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, D]."""
        return torch.tanh(self.linear(hidden[:, 0]))


class NextSentenceHead(PartModule, of=spec.NSPHead):
    """Two logits (is next, is not) of the pooled text (Devlin et al. 2018)."""

    def __init__(self, head: spec.NSPHead, inputs: spec.HeadInput) -> None:
        super().__init__()
        self.pooler = Pooler(head, inputs)
        self.classifier = nn.Linear(inputs.d_model, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, 2]."""
        return self.classifier(self.pooler(hidden))


class TextClassifier(PartModule, of=spec.ClassifierHead):
    """Label logits of one vector per text."""

    def __init__(self, head: spec.ClassifierHead, inputs: spec.HeadInput) -> None:
        super().__init__()
        self.pooling: spec.Pooling = head.pooling
        self.dropout = nn.Dropout(inputs.dropout)
        self.dense = build_dense(head.dense, inputs, inputs.d_model)
        self.classifier = nn.Linear(inputs.d_model, head.num_labels, bias=head.bias)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T, D] -> [B, L]; the mask [B, T] is nonzero where a token is real."""
        pooled = pool(hidden, attention_mask, self.pooling)
        return self.classifier(self.dropout(self.dense(pooled)))


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
