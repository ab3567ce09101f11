"""Heads over the vocabulary.

Shape letters: D d_model, E width of token vectors, V vocabulary.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import SerializeAsAny
from torch import Tensor, nn

from trivium.models.heads import Dense, Head, HeadInput, build_dense
from trivium.nn.part import PartModule, Positive
from trivium.nn.positions import AbsolutePositions


class LMHead(Head):
    """Logits of the next token, through the embedding's matrix if tied (T5: times `scale`).

    With `soft_cap` c a logit z is c tanh(z / c) (Gemma 2).
    """

    kind: Literal["lm"] = "lm"
    tied: bool
    bias: bool = False
    scale: Positive = 1.0
    soft_cap: Positive | None = None

    def build(self, inputs: HeadInput) -> CausalHead:
        """See `Head.build`."""
        return CausalHead(self, inputs)


class MLMHead(Head):
    """Logits of masked tokens: dense, activation, norm, projection with a bias (BERT).

    Without a dense layer the projection reads the hidden states. With `late_positions` these are
    of an enhanced mask decoder (He et al. 2020, section 3.2): the last layer runs twice, its
    queries are its input and vectors of absolute positions, then what the first run gave; its keys
    and values are its input. In the paper the first queries are positions alone; as here, it is in
    the released code.
    """

    reads_both_sides: ClassVar[bool] = True
    kind: Literal["mlm"] = "mlm"
    dense: Dense | None = None
    tied: bool = True
    bias: bool = True
    late_positions: SerializeAsAny[AbsolutePositions] | None = None

    def build(self, inputs: HeadInput) -> MaskedHead:
        """See `Head.build`."""
        return MaskedHead(self, inputs)


class VocabularyHead(PartModule):
    """Logits = f(h) E^T + c, with E the table of token vectors if tied, else a matrix of its own.

    `forward` is f. With a `soft_cap` these z become soft_cap * tanh(z / soft_cap).
    `packed` is the product with E and c of a model packed for inference.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    soft_cap: float | None = None

    def __init__(self, inputs: HeadInput, *, tied: bool, bias: bool) -> None:
        super().__init__()
        shape = inputs.vocab_size, inputs.d_embedding
        self.weight = None if tied else nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(inputs.vocab_size)) if bias else None
        self.packed: nn.Module | None = None
        self.late_positions: nn.Module | None = None


class CausalHead(VocabularyHead):
    """f(h) = scale * h, through a matrix where token vectors have a width of their own."""

    def __init__(self, head: LMHead, inputs: HeadInput) -> None:
        super().__init__(inputs, tied=head.tied, bias=head.bias)
        self.scale, self.soft_cap, self.projection = head.scale, head.soft_cap, None
        if inputs.projects:
            self.projection = nn.Linear(inputs.d_model, inputs.d_embedding, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., E]."""
        if self.projection is not None:
            hidden = self.projection(hidden)
        return hidden if self.scale == 1.0 else hidden * self.scale


class MaskedHead(VocabularyHead):
    """f(h) = norm(act(h W + b)) (Devlin et al. 2018, as released); f(h) = h without it."""

    def __init__(self, head: MLMHead, inputs: HeadInput) -> None:
        super().__init__(inputs, tied=head.tied, bias=head.bias)
        self.dense = build_dense(head.dense, inputs, inputs.d_embedding)
        if (late := head.late_positions) is not None:
            self.late_positions = late.build(inputs.d_model)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., E]."""
        return self.dense(hidden)
