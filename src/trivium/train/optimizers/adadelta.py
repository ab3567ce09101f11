"""The Adadelta optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import nn

from trivium.train.optimizers import Optimizer, Optimizers, trained_parameters


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012, algorithm 1), using PyTorch's `torch.optim.Adadelta`.

    The update of a weight with gradient g is lr * g * RMS(earlier updates) / RMS(gradients). RMS
    is the root of a moving average of squares. The default learning rate is that of the paper, 1.
    """

    kind: Literal["adadelta"] = "adadelta"
    rho: float = Field(0.95, ge=0, lt=1, description="decay of the moving averages of squares")
    eps: float = Field(1e-6, gt=0, description="added to the averages of squares")
    fine_tuning: ClassVar[Mapping[str, Any]] = {}

    @property
    def initial_weight_decay(self) -> float:
        """The weight decay at the start of training, 0 by default (L2 regularization)."""
        return self.weight_decay or 0.0

    def with_default_learning_rates(self, adamw_lr: float, embedding_lr_scale: float) -> Self:
        """Return the optimizer with the learning rate of the paper, unless `lr` is set."""
        return self if self.lr is not None else self.replace(lr=1.0)

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Build one Adadelta optimizer for all trained parameters."""
        assert self.lr is not None
        groups = self._make_parameter_groups(trained_parameters(model), set())
        return [torch.optim.Adadelta(groups, lr=self.lr, rho=self.rho, eps=self.eps)]
