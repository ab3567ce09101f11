"""Numbers a user gives: checked, and brought to the model's device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.errors import SpecError

Numbers = Tensor | npt.NDArray[np.integer] | Sequence[Sequence[int]]


def whole_numbers(
    name: str, values: Numbers, device: torch.device, *, like: Tensor | None = None
) -> Tensor:
    """Values as int64 [B, T] on a device.

    Raises SpecError where they are no whole numbers, not [B, T], or not of the shape of `like`.
    """
    try:
        found = torch.as_tensor(np.asarray(values) if isinstance(values, list) else values)
    except (TypeError, ValueError, RuntimeError):
        raise SpecError(f"{name} must be whole numbers in rows of equal length.") from None
    if found.is_floating_point() or found.is_complex():
        raise SpecError(f"{name} must be whole numbers, not {found.dtype}.")
    if found.ndim != 2 or not found.numel():
        raise SpecError(f"{name} must be [B, T] and not empty, not {list(found.shape)}.")
    if like is not None and found.shape != like.shape:
        ids = "decoder_input_ids" if name.startswith("decoder") else "input_ids"
        raise SpecError(
            f"{name} is {list(found.shape)}, but {ids} is {list(like.shape)}: "
            "give one number for each token."
        )
    return found.to(device, torch.int64)


def check_range(name: str, values: Tensor, limit: int) -> None:
    """Raise SpecError at a number below 0, or of `limit` or more."""
    if int(values.min()) < 0 or int(values.max()) >= limit:
        wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
        raise SpecError(f"{name} has {wrong}, but this model takes 0 to {limit - 1}.")
