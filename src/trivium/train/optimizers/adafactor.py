"""The Adafactor optimizer, which needs little memory for second moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import nn

from trivium.train.optimizers import Optimizer, Optimizers, trained_parameters

# The default learning rate: 1 / sqrt(10,000) as in Raffel et al. 2019, section 3.1.2.
_RATE = 0.01


class Adafactor(Optimizer):
    """Adafactor (Shazeer and Stern 2018), using PyTorch's `torch.optim.Adafactor`.

    The second moment of a matrix is the outer product of a vector for rows and a vector for
    columns. There is no first moment. An update is lr max(1e-3, RMS(weight)) u / max(1, RMS(u)),
    where u is the gradient divided by the root of the second moment. PyTorch limits lr to 1 /
    sqrt(step), as in algorithm 4 of the paper.
    """

    kind: Literal["adafactor"] = "adafactor"
    beta2_decay: float = Field(
        -0.8, le=0, description="decay of the second moment at step t is 1 - t ** beta2_decay"
    )
    fine_tuning: ClassVar[Mapping[str, Any]] = {}
    supports_sharding: ClassVar[bool] = False

    @property
    def initial_weight_decay(self) -> float:
        """The weight decay at the start of training, 0 by default (decoupled from the gradient)."""
        return self.weight_decay or 0.0

    def with_default_learning_rates(self, adamw_lr: float, embedding_lr_scale: float) -> Self:
        """Return the optimizer with its own default learning rate, unless `lr` is set.

        The learning rate is relative to the RMS of each parameter.
        """
        return self if self.lr is not None else self.replace(lr=_RATE)

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Build one Adafactor optimizer for all trained parameters."""
        assert self.lr is not None
        groups = self._make_parameter_groups(trained_parameters(model), set())
        return [torch.optim.Adafactor(groups, lr=self.lr, beta2_decay=self.beta2_decay)]

    def state_size(self, model: nn.Module) -> int:
        """Return the number of elements in the second moments.

        A matrix has one element per row and per column, and a vector has one per element.
        """
        shapes = [weight.shape for weight in trained_parameters(model).values()]
        return sum(
            shape.numel() // shape[-1] + shape.numel() // shape[-2]
            if len(shape) > 1
            else shape.numel()
            for shape in shapes
        )
