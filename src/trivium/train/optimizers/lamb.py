"""The LAMB optimizer, for large batches."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import nn

from trivium.errors import require_extra
from trivium.train.optimizers import Optimizer, Optimizers, trained_parameters


class LAMB(Optimizer):
    """LAMB (You et al. 2019, algorithm 2), using `Lamb` from the library `pytorch_optimizer`.

    The update of a weight tensor w is lr min(|w|, 10) / |u| u. Here u is Adam's update without bias
    correction, plus the weight decay times w.
    """

    kind: Literal["lamb"] = "lamb"
    supports_sharding: ClassVar[bool] = False

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Build one LAMB optimizer for all trained parameters."""
        assert self.lr is not None
        with require_extra("optimizer.kind = lamb", "optimizers"):
            from pytorch_optimizer import Lamb
        options: dict[str, Any] = {"betas": self.betas, "eps": self.eps}
        # With adam_debias, the library does not correct the bias. It would count the steps for this
        # outside of the state.
        options |= {"adam_debias": True, "weight_decouple": False, "foreach": False}
        groups = self._make_parameter_groups(trained_parameters(model), set())
        return [Lamb(groups, lr=self.lr, **options)]

    def state_size(self, model: nn.Module) -> int:
        """Return the number of elements in the optimizer state.

        These are two moments per weight and three scalars per weight tensor.
        """
        return super().state_size(model) + 3 * len(trained_parameters(model))
