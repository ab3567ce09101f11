"""Validation loss: the same rows or examples with the same noise every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trivium.objectives import to_device
from trivium.train.distributed import Parallel
from trivium.train.loader import BatchStream
from trivium.train.loss_meter import LossMeter, widened


@torch.no_grad()
def validation_losses(
    train_step: nn.Module,
    streams: Sequence[BatchStream],
    shares: Mapping[str, float],
    *,
    tokens: int,
    precision: torch.dtype,
    device: torch.device,
    parallel: Parallel,
) -> dict[str, float]:
    """Mean losses by the names they are logged with; leaves the model in evaluation mode.

    Args:
        train_step: a `TrainStep`, whole or sharded.
        streams: of the sources that have held-out data.
        shares: of every source in the steps, by name.
        tokens: held-out tokens of text to evaluate on, all sources together.
        precision: of activations.
        device: of the model.
        parallel: the processes, which divide the batches.
    """
    if not streams:
        return {}
    train_step.eval()
    meter, enabled = LossMeter(), precision is not torch.float32
    for stream in streams:
        batch = stream.held_out(max(1, round(shares[stream.name] * tokens)), parallel)
        sums: dict[str, Tensor] = {}
        for micro_batch, (_, weight) in zip(batch.micro_batches, batch.shares, strict=True):
            with torch.autocast(device.type, precision, enabled=enabled):
                losses = train_step(stream.objective, to_device(micro_batch, device))
            for term, loss in losses.items():
                sums[term] = sums.get(term, 0.0) + weight * widened(loss)
        meter.add(stream.name, parallel.all_reduce(sums), batch.of_all(parallel).label_counts)
    return meter.means("valid", streams, shares)
