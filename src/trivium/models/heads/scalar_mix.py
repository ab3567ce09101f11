"""The head that computes a weighted sum of the layers of a model for task heads (ELMo)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.models.heads import Head, HeadInput
from trivium.nn.part import Count, PartModule


class ScalarMix(Head):
    """Scalar mix gamma sum_j s_j h_j, s a softmax, that task heads read (Peters et al. 2018).

    `num_layers` is the number of mixed layers, including the token embeddings.
    """

    predicts: ClassVar[bool] = False
    kind: Literal["scalar-mix"] = "scalar-mix"
    num_layers: Count

    def build(self, inputs: HeadInput) -> ScalarMixHead:
        """Return the module of the head (see `Head.build`)."""
        return ScalarMixHead(self, inputs)


class ScalarMixHead(PartModule):
    """ELMo = gamma sum_j s_j h_j, s = softmax(w) (Peters et al. 2018, equation 1).

    At initialization, the output is the mean of the layers.
    """

    def __init__(self, head: ScalarMix, inputs: HeadInput) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(head.num_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set w = 0 and gamma = 1."""
        nn.init.zeros_(self.weights)
        nn.init.ones_(self.gamma)

    def forward(self, layers: Iterable[Tensor]) -> Tensor:
        """Return the mix [..., D] of layers that are [..., D] each."""
        factors = self.gamma * self.weights.softmax(0)
        return sum(factor * layer for factor, layer in zip(factors, layers, strict=True))  # type: ignore[return-value]
