"""The head that computes a weighted sum of all layers, which task heads read (ELMo)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.models.heads import Head, HeadInput
from trivium.nn.part import Count, PartModule


class ScalarMix(Head):
    """Weighted sum of all layers with trained weights, which task heads read (Peters et al. 2018).

    `num_layers` is the number of layers in the sum, including the token embeddings.
    """

    predicts: ClassVar[bool] = False
    kind: Literal["scalar-mix"] = "scalar-mix"
    num_layers: Count

    def build(self, inputs: HeadInput) -> ScalarMixHead:
        """Return the module of the head (see `Head.build`)."""
        return ScalarMixHead(self, inputs)


class ScalarMixHead(PartModule):
    """Module of `ScalarMix`: gamma sum_j s_j h_j with s = softmax(w) for layers h_j (ELMo).

    At initialization, the output is the mean of the layers. Source: Peters et al. 2018, equation 1.
    """

    def __init__(self, head: ScalarMix, inputs: HeadInput) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(head.num_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize w to 0 and gamma to 1, so that the output is the mean of the layers."""
        nn.init.zeros_(self.weights)
        nn.init.ones_(self.gamma)

    def forward(self, layers: Iterable[Tensor]) -> Tensor:
        """Return the weighted sum [..., D] of hidden states [..., D] of all layers."""
        factors = self.gamma * self.weights.softmax(0)
        return sum(factor * layer for factor, layer in zip(factors, layers, strict=True))  # type: ignore[return-value]
