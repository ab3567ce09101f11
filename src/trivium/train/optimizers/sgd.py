"""The SGD optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import nn

from trivium.errors import RecipeError
from trivium.train.optimizers import Optimizer, Optimizers, trained_parameters


class SGD(Optimizer):
    """Stochastic gradient descent, using PyTorch's `torch.optim.SGD`."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1, description="decay of the sum of past gradients")
    fine_tuning: ClassVar[Mapping[str, Any]] = {}

    @property
    def initial_weight_decay(self) -> float:
        """The weight decay at the start of training, 0 by default (L2 regularization)."""
        return self.weight_decay or 0.0

    def with_default_learning_rates(self, adamw_lr: float, embedding_lr_scale: float) -> Self:
        """Return the optimizer unchanged. Raises RecipeError if the learning rate is not set.

        There is no default, since no single learning rate suits many models.
        """
        if self.lr is None:
            raise RecipeError('optimizer.kind = "sgd" has no default rate: set optimizer.lr.')
        return self

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Build one SGD optimizer for all trained parameters."""
        assert self.lr is not None
        groups = self._make_parameter_groups(trained_parameters(model), set())
        return [torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)]

    def state_size(self, model: nn.Module) -> int:
        """Return the number of elements in the momentum buffers; 0 without momentum."""
        return sum(w.numel() for w in trained_parameters(model).values()) if self.momentum else 0
