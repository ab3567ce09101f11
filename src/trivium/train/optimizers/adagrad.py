"""The Adagrad optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from trivium.train.optimizers import Optimizer, Optimizers, trained_parameters


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011), using PyTorch's `torch.optim.Adagrad`.

    The update of a weight with gradient g is lr g / (sqrt(s) + eps), where s is the sum of all its
    squared gradients.
    """

    kind: Literal["adagrad"] = "adagrad"
    initial_sum: float = Field(0.0, ge=0, description="initial value of the sums of squares")
    fine_tuning: ClassVar[Mapping[str, Any]] = {}

    @property
    def initial_weight_decay(self) -> float:
        """The weight decay at the start of training, 0 by default (L2 regularization)."""
        return self.weight_decay or 0.0

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Build one Adagrad optimizer for all trained parameters."""
        assert self.lr is not None
        groups = self._make_parameter_groups(trained_parameters(model), set())
        first = self.initial_sum
        return [
            torch.optim.Adagrad(groups, lr=self.lr, eps=self.eps, initial_accumulator_value=first)
        ]

    def state_size(self, model: nn.Module) -> int:
        """Return the number of elements in the sums of squares: one per trained weight."""
        return sum(weight.numel() for weight in trained_parameters(model).values())
