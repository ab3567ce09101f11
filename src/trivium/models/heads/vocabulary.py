"""Heads over the vocabulary.

Shape letters: D d_model, E width of token vectors, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.models.dense import build_dense
from trivium.nn.part_module import PartModule, module_class


class VocabularyHead(PartModule):
    """Logits = f(h) E^T + c, with E the table of token vectors if tied, else a matrix of its own.

    `forward` is f. With a `soft_cap` these z become soft_cap * tanh(z / soft_cap).
    `packed` is the product with E and c of a model packed for inference.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    soft_cap: float | None = None

    def __init__(self, inputs: spec.HeadInput, *, tied: bool, bias: bool) -> None:
        super().__init__()
        shape = inputs.vocab_size, inputs.d_embedding
        self.weight = None if tied else nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(inputs.vocab_size)) if bias else None
        self.packed: nn.Module | None = None
        self.late_positions: nn.Module | None = None


class CausalHead(VocabularyHead, of=spec.LMHead):
    """f(h) = scale * h, through a matrix where token vectors have a width of their own."""

    def __init__(self, head: spec.LMHead, inputs: spec.HeadInput) -> None:
        super().__init__(inputs, tied=head.tied, bias=head.bias)
        self.scale, self.soft_cap, self.projection = head.scale, head.soft_cap, None
        if inputs.projects:
            self.projection = nn.Linear(inputs.d_model, inputs.d_embedding, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., E]."""
        if self.projection is not None:
            hidden = self.projection(hidden)
        return hidden if self.scale == 1.0 else hidden * self.scale


class MaskedHead(VocabularyHead, of=spec.MLMHead):
    """f(h) = norm(act(h W + b)) (Devlin et al. 2018, as released); f(h) = h without it."""

    def __init__(self, head: spec.MLMHead, inputs: spec.HeadInput) -> None:
        super().__init__(inputs, tied=head.tied, bias=head.bias)
        self.dense = build_dense(head.dense, inputs, inputs.d_embedding)
        if (late := head.late_positions) is not None:
            self.late_positions = module_class(late)(late, inputs.d_model)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., E]."""
        return self.dense(hidden)
