"""What draws the weights of a Transformer for every kind of start of `spec/initializations`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trivium.choice import import_members
from trivium.models.transformer import Transformer
from trivium.nn.part_module import OfPart, PartModule

_TABLES = ("tokens", "source_tokens", "positions", "late_positions", "token_types")


class WeightStart(OfPart):
    """How matrices and tables start; biases are 0 and norms 1 whatever the start.

    Args:
        start: the kind of start, with its numbers.
        model: whose weights are drawn.
    """

    embedding_std = 1.0
    """Deviation of token vectors."""

    def __init__(self, start: Any, model: Transformer) -> None:
        self.start, self.model = start, model
        rows = (row for module in model.modules() for row in _row_weights(module))
        self.adding_to_stream = {id(weight) for weight in rows}

    def deviation(self, name: str, weight: Tensor) -> float:
        """The standard deviation that a matrix or table is drawn with."""
        raise NotImplementedError

    def draw(self, name: str, weight: Tensor, generator: torch.Generator) -> None:
        """Draw a matrix or a table."""
        std = self.deviation(name, weight)
        weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))


def is_table(name: str) -> bool:
    """Whether a parameter is a table of vectors: of tokens, positions or token types."""
    return name.removesuffix(".weight").rpartition(".")[2] in _TABLES


def draw_uniform(weight: Tensor, bound: float, generator: torch.Generator) -> None:
    """Draw from +-bound."""
    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


def _row_weights(module: nn.Module) -> list[Tensor]:
    """The matrices of a module whose products are added to the residual stream."""
    if not isinstance(module, PartModule):
        return []
    rows = [getattr(module, name) for name, side in module.parallel.items() if side == "row"]
    return [row.weight if isinstance(row, nn.Linear) else row for row in rows]


import_members(__name__, __path__)
