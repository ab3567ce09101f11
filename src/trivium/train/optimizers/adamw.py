"""AdamW."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from trivium.train.optimizers import Optimizer, Optimizers, trained


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017), fused."""

    kind: Literal["adamw"] = "adamw"

    def _build(self, model: nn.Module, precision: torch.dtype) -> Optimizers:
        """One AdamW for everything."""
        return [self.adamw(model, trained(model))]
