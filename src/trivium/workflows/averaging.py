"""The mean of the last checkpoints' weights."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from torch import Tensor

from trivium.train.checkpoint import checkpoints, damage, load_tensors


def average_of_last(folder: Path, count: int) -> dict[str, Tensor]:
    """The mean of the weights of the last `count` whole checkpoints (Vaswani et al. 2017, 6.1)."""
    whole = (checkpoint for checkpoint in checkpoints(folder) if damage(checkpoint) is None)
    total: dict[str, Tensor] = {}
    number = 0
    for checkpoint in islice(whole, count):
        number += 1
        for name, weight in load_tensors(checkpoint / "model.safetensors").items():
            total[name] = total[name] + weight.double() if name in total else weight.double()
    return {name: (weight / number).float() for name, weight in total.items()}
