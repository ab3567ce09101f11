"""Which precision products run in."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Autocast's precision where it is on, else that of `x`."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def to_autocast_dtype(x: Tensor) -> Tensor:
    """`x` as matrix products read it: cast once here, not again by every layer that reads it."""
    return x.to(autocast_dtype(x))
