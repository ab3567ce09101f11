"""The AdamW optimizer."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from trivium.train.optimizers import Optimizer, Optimizers, trained_parameters


class AdamW(Optimizer):
    """AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2017), fused."""

    kind: Literal["adamw"] = "adamw"

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """Build one AdamW optimizer for all trained parameters."""
        return [self.build_adamw(model, trained_parameters(model))]
