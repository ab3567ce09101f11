"""Uniform weights by inputs and outputs (Glorot and Bengio 2010)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivium import spec
from trivium.models.initializations import WeightStart, draw_uniform, is_table


class XavierStart(WeightStart, of=spec.Xavier):
    """See `spec.Xavier`."""

    def deviation(self, name: str, weight: Tensor) -> float:
        """That of tables."""
        return self.model.spec.d_model**-0.5

    def draw(self, name: str, weight: Tensor, generator: torch.Generator) -> None:
        """See `WeightStart.draw`."""
        if is_table(name) and self.start.tables == "normal":
            super().draw(name, weight, generator)
        else:
            draw_uniform(weight, math.sqrt(6.0 / sum(weight.shape)), generator)
