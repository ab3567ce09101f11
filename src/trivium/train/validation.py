"""Validation loss: the same rows or examples with the same noise every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from trivium.objectives import to_device
from trivium.train.loader import BatchStream
from trivium.train.loss_meter import LossMeter
from trivium.train.trainer import TrainStep


@torch.no_grad()
def validation_losses(
    model: nn.Module,
    streams: Sequence[BatchStream],
    shares: Mapping[str, float],
    *,
    tokens: int,
    precision: torch.dtype,
) -> dict[str, float]:
    """Mean losses by the names they are logged with; leaves the model in evaluation mode.

    Args:
        streams: of the sources that have held-out data.
        shares: of every source in the steps, by name.
        tokens: held-out tokens of text to evaluate on, all sources together.
        precision: of activations.
    """
    if not streams:
        return {}
    device = next(model.parameters()).device
    train_step, meter = TrainStep(model).eval(), LossMeter()
    enabled = precision is not torch.float32
    for stream in streams:
        for batch in stream.held_out(max(1, round(shares[stream.name] * tokens))):
            with torch.autocast(device.type, precision, enabled=enabled):
                losses = train_step(stream.objective, to_device(batch, device))
            meter.add(stream.name, losses, stream.objective.label_counts(batch))
    return meter.means("valid", streams, shares)
