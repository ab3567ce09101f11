"""Normal weights (BERT, GPT)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trivium import spec
from trivium.models.initializations import WeightStart, is_table
from trivium.models.transformer import Transformer


class NormalStart(WeightStart, of=spec.Normal):
    """One deviation for matrices, one for tables; see `spec.Normal`."""

    def __init__(self, start: Any, model: Transformer) -> None:
        super().__init__(start, model)
        self.embedding_std = start.embedding_std

    def deviation(self, name: str, weight: Tensor) -> float:
        """See `WeightStart.deviation`."""
        std = self.start.std
        if is_table(name):
            return self.embedding_std
        if id(weight) not in self.adding_to_stream:
            return std
        layers = sum(stack.num_layers for stack in self.model.spec.stacks)
        starts = {"full": std, "scaled": std / (2 * layers) ** 0.5, "zero": 0.0}
        return starts[self.start.residual_init]
