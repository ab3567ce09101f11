"""What turns hidden states into answers: vocabulary logits, or the relation of two sentences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.nn.feed_forward import ACTIVATIONS
from trivium.nn.norm import build_norm


class LMHead(nn.Module):
    """Logits = h W^T with W the token embedding if tied, else a matrix of its own."""

    bias: nn.Parameter | None

    def __init__(self, head: spec.LMHead, model: spec.ModelSpec) -> None:
        super().__init__()
        shape = (model.vocab_size, model.d_model)
        self.weight = None if head.tied else nn.Parameter(torch.empty(shape))
        self.bias = None

    def forward(self, hidden: Tensor) -> Tensor:
        """The features that meet the vocabulary matrix: [..., D] -> [..., D]."""
        return hidden


class MLMHead(nn.Module):
    """Logits = f(h) E^T + c with E the token embedding and f(h) = norm(act(h W + b)).

    Source: Devlin et al. 2018, as released. With activation "none" f(h) = h.
    """

    weight: nn.Parameter | None

    def __init__(self, head: spec.MLMHead, model: spec.ModelSpec) -> None:
        super().__init__()
        self.activation = None
        if head.activation != "none":
            self.dense = nn.Linear(model.d_model, model.d_model, bias=head.bias)
            self.activation = ACTIVATIONS[head.activation]
            self.norm = build_norm(model.stacks[0].norm, model.d_model)
        self.weight = None
        self.bias = nn.Parameter(torch.zeros(model.vocab_size))

    def start_as_identity(self) -> None:
        """Begin with f(h) near h: where gelu is straight; the norm takes the offset away."""
        if self.activation is None:
            return
        nn.init.eye_(self.dense.weight)
        if self.dense.bias is not None:
            nn.init.constant_(self.dense.bias, 3.0)

    def forward(self, hidden: Tensor) -> Tensor:
        """The features that meet the vocabulary matrix: [..., D] -> [..., D]."""
        if self.activation is None:
            return hidden
        return self.norm(self.activation(self.dense(hidden)))


class NSPHead(nn.Module):
    """Two logits (is next, is not) from tanh(dense(first position)) (Devlin et al. 2018)."""

    def __init__(self, model: spec.ModelSpec) -> None:
        super().__init__()
        self.pooler = nn.Linear(model.d_model, model.d_model)
        self.classifier = nn.Linear(model.d_model, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, T, D] -> [B, 2]."""
        return self.classifier(torch.tanh(self.pooler(hidden[:, 0])))


def build_head(
    head: spec.LMHead | spec.MLMHead | spec.NSPHead, model: spec.ModelSpec
) -> LMHead | MLMHead | NSPHead:
    """The module that a head's description stands for."""
    match head:
        case spec.LMHead():
            return LMHead(head, model)
        case spec.MLMHead():
            return MLMHead(head, model)
        case spec.NSPHead():
            return NSPHead(model)
