"""A batch on the device, and what losses make of it: hidden states, and sums of terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trivium.data.batch import IGNORE_INDEX, Batch
from trivium.data.row_order import derived_seed
from trivium.models import LanguageModule

LossTerms = dict[str, Tensor]
"""The terms of a loss by name, summed over labels; the only one of most objectives is "loss"."""


class MicroBatchSlice(NamedTuple):
    """Rows that pass through the model together, where the rows of a step are not one batch.

    Args:
        number: in the step.
        start, stop: the first row, and the last row + 1.
        width: columns of the longest one.
        weight: 1, or 0 where another process computes them, too.
    """

    number: int
    start: int
    stop: int
    width: int
    weight: float = 1.0


@dataclass(frozen=True)
class TensorBatch:
    """A `Batch` on the device, its labels as flat positions and targets.

    Positions [M] index [B * T] and targets are [M]; both are computed on the host, so that
    gathering the labelled hidden states never waits for the device. `inputs` are keyword arguments
    of the model, the cache of an objective that carries state among them. `sequence_labels` are as
    in the batch; `extras` are the fields that a subclass of `Batch` adds. If the rows of
    a step are each other's negatives, `slices` are the parts of the batch that this process
    computes, and `group` is the group of all processes (None for a single process).
    """

    inputs: dict[str, Any]
    label_positions: Tensor
    targets: Tensor
    sequence_labels: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    slices: tuple[MicroBatchSlice, ...] = ()
    group: Any = None

    def parts(self) -> Iterator[tuple[MicroBatchSlice, dict[str, Any]]]:
        """Yield every part that this process computes, with its inputs [B, T], or [B, 2, T]."""
        width = max(one.shape[-1] for one in self.inputs.values())
        for cut in self.slices or (MicroBatchSlice(0, 0, len(self.inputs["input_ids"]), width),):
            rows = slice(cut.start, cut.stop)
            yield cut, {name: one[rows, ..., : cut.width] for name, one in self.inputs.items()}

    def compute_rows(
        self,
        compute: Callable[[Any], tuple[Tensor, LossTerms]],
        parts: Iterable[tuple[MicroBatchSlice, Any]],
    ) -> tuple[Tensor, LossTerms]:
        """Compute numbers for every row of the step, part by part, each process some of the parts.

        Activations are not kept: every part is computed again for its gradient, with the same
        dropout.

        Args:
            compute: numbers [B, N] of the rows of a part, and terms that layers add to the loss.
            parts: what this process computes: where each part is, and the argument of `compute`.

        Returns the numbers of all rows, [R, N], and the terms of all parts.
        """
        assert self.sequence_labels is not None
        seed, count = torch.initial_seed(), len(self.sequence_labels)
        rows, terms = torch.zeros((), device=self.targets.device), {}
        for cut, part in parts:
            torch.manual_seed(derived_seed(seed, cut.number))  # dropout is that of the part
            own, added = checkpoint(compute, part, use_reentrant=False)  # type: ignore[misc]
            rows = rows + F.pad(cut.weight * own, (0, 0, cut.start, count - cut.stop))
            terms = {name: cut.weight * one + terms.get(name, 0.0) for name, one in added.items()}
        return self._sum_of_all(rows), {name: self._sum_of_all(one) for name, one in terms.items()}

    def _sum_of_all(self, x: Tensor) -> Tensor:
        """Return the sum over the processes of the step, whose gradients are also summed."""
        return x if self.group is None else _SumOfAll.apply(x, self.group)  # type: ignore[return-value]


class _SumOfAll(torch.autograd.Function):
    """Sums a tensor over the processes of a group, and in the backward pass its gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group, total = group, x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _SumOfAll.forward(context, gradient, context.group), None


def to_device(batch: Batch, device: torch.device) -> TensorBatch:
    """Copy a batch to a device, all integers in one copy."""
    arrays = batch.arrays()
    labels = arrays.pop("labels", np.empty(0, dtype=np.int64)).ravel()
    positions = np.flatnonzero(labels != IGNORE_INDEX)
    sequence_labels = arrays.pop("sequence_labels", None)
    added = arrays.keys() - {one.name for one in fields(Batch)}
    extras = {name: copy_to_device(arrays.pop(name), device) for name in sorted(added)}
    arrays |= {"label_positions": positions, "targets": labels[positions]}
    flat = copy_to_device(np.concatenate([array.ravel() for array in arrays.values()]), device)
    pieces = flat.split([array.size for array in arrays.values()])
    tensors = {
        name: piece.view(array.shape)
        for (name, array), piece in zip(arrays.items(), pieces, strict=True)
    }
    return TensorBatch(
        label_positions=tensors.pop("label_positions"),
        targets=tensors.pop("targets"),
        sequence_labels=None
        if sequence_labels is None
        else copy_to_device(sequence_labels, device),
        inputs=tensors,
        extras=extras,
    )


def copy_to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device; neither the host nor the computation of a GPU waits for it.

    The host is a step ahead of a GPU. On a stream of its own, the copy from pinned memory runs
    while the GPU still computes the previous step.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copied = tensor.pin_memory().to(device, non_blocking=True)
    current.wait_stream(stream)
    copied.record_stream(current)  # its memory is free when the computation has used it
    return copied


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which batches are copied to a GPU."""
    return torch.cuda.Stream(device)


AUX_LOSS = "aux_loss"
"""The term of what layers add to a loss, such as the balance of experts: a mean per token.

Of a step it is the mean of what its micro-batches add, each weighted by its real tokens.
"""


def read(
    model: LanguageModule, inputs: Mapping[str, Tensor], *, gather_positions: Tensor | None = None
) -> tuple[Tensor, LossTerms]:
    """Return the hidden states, and the term that layers add to the loss, if they add one.

    Shape: [B, T, D], or of flat positions `gather_positions`, int64 [M], [M, D].
    """
    hidden, loss = model.read(**inputs, gather_positions=gather_positions)
    if loss is None:
        return hidden, {}
    real = inputs.get("attention_mask", inputs.get("document_ids"))
    tokens = inputs["input_ids"].numel() if real is None else real.count_nonzero()
    return hidden, {AUX_LOSS: loss * tokens}


def token_losses(model: LanguageModule, batch: TensorBatch, *, smoothing: float = 0.0) -> LossTerms:
    """Return the nats of the labelled positions by the head over the vocabulary, summed."""
    hidden, terms = read(model, batch.inputs, gather_positions=batch.label_positions)
    return {"loss": model.lm_loss(hidden, batch.targets, smoothing=smoothing), **terms}
