"""Batches on the device, and functions that objectives use to compute their losses.

Shape letters: B rows, T tokens per row, M labelled positions, D d_model, R rows of a whole step.
"""

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
"""The loss terms by name, each summed over labels. Most objectives have only the term "loss"."""


class MicroBatchSlice(NamedTuple):
    """A micro-batch, given as a range of rows in the batch of a whole step.

    Objectives that compare all rows of a step, for example contrastive learning with in-batch
    negatives, need the whole batch in one `TensorBatch`. To limit memory, a forward pass
    nevertheless reads only the rows of one slice.

    Args:
        number: the index of the slice in the step. It determines the random seed for dropout.
        start: the first row.
        stop: the row after the last row.
        width: the number of columns to read, which is the length of the longest row.
        weight: usually 1.0. If another process computes the same slice and its results are used,
            the weight is 0.0.
    """

    number: int
    start: int
    stop: int
    width: int
    weight: float = 1.0


@dataclass(frozen=True)
class TensorBatch:
    """A `Batch` on the device.

    The labels are stored as flat positions and targets, which are computed on the host. Gathering
    the hidden states of labelled positions therefore needs no synchronization with the device.

    Args:
        inputs: keyword arguments of the model, such as `input_ids` [B, T]. For objectives that
            carry state from step to step, they include the cache.
        label_positions: int64 [M], the labelled positions as indices into [B * T].
        targets: int64 [M], the labels at these positions.
        sequence_labels: the labels of whole sequences, as in `Batch`.
        extras: the fields that a subclass of `Batch` adds.
        slices: the micro-batches that this process computes, for objectives that compare all rows
            of a step. Empty for other objectives.
        group: the group of processes that compute the step together. None for a single process.
    """

    inputs: dict[str, Any]
    label_positions: Tensor
    targets: Tensor
    sequence_labels: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    slices: tuple[MicroBatchSlice, ...] = ()
    group: Any = None

    def micro_batches(self) -> Iterator[tuple[MicroBatchSlice, dict[str, Any]]]:
        """Yield each of this process's micro-batches as a pair (slice, model inputs).

        The inputs are [B, T] or [B, 2, T]. If `slices` is empty, the whole batch is one slice.
        """
        width = max(x.shape[-1] for x in self.inputs.values())
        for part in self.slices or (MicroBatchSlice(0, 0, len(self.inputs["input_ids"]), width),):
            rows = slice(part.start, part.stop)
            yield part, {name: x[rows, ..., : part.width] for name, x in self.inputs.items()}

    def compute_by_slice(
        self,
        compute: Callable[[Any], tuple[Tensor, LossTerms]],
        parts: Iterable[tuple[MicroBatchSlice, Any]],
    ) -> tuple[Tensor, LossTerms]:
        """Compute a vector for every row of the step, one micro-batch slice at a time.

        Each process computes some of the slices, and an all-reduce combines the results.
        Activations are recomputed in the backward pass (checkpointing), with the same dropout.

        Args:
            compute: a function that maps the inputs of a slice to a pair: vectors [B, N] for its
                rows, and the auxiliary losses of the layers.
            parts: the slices that this process computes, each with the argument of `compute`.

        Returns:
            The vectors of all rows of the step, [R, N], and the auxiliary losses, summed over all
            slices.
        """
        assert self.sequence_labels is not None
        seed, count = torch.initial_seed(), len(self.sequence_labels)
        rows, terms = torch.zeros((), device=self.targets.device), {}
        for part, inputs in parts:
            torch.manual_seed(derived_seed(seed, part.number))  # the same dropout on any process
            own, added = checkpoint(compute, inputs, use_reentrant=False)  # type: ignore[misc]
            rows = rows + F.pad(part.weight * own, (0, 0, part.start, count - part.stop))
            terms = {name: part.weight * one + terms.get(name, 0.0) for name, one in added.items()}
        return self._all_reduce(rows), {name: self._all_reduce(one) for name, one in terms.items()}

    def _all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the processes of `group`. The gradient is summed, too."""
        return x if self.group is None else _AllReduce.apply(x, self.group)  # type: ignore[return-value]


class _AllReduce(torch.autograd.Function):
    """Differentiable all-reduce, which sums a tensor and its gradient over a process group."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        """Return the sum of `x` over the processes of `group`."""
        context.group, total = group, x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return the sum of the gradient over the processes, and None for `group`."""
        return _AllReduce.forward(context, gradient, context.group), None


def to_device(batch: Batch, device: torch.device) -> TensorBatch:
    """Copy a batch to a device. Returns it as a `TensorBatch`.

    All integer arrays are copied in a single transfer.
    """
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
    """Copy a NumPy array to a device asynchronously. Returns the tensor.

    The copy from pinned memory runs on a separate CUDA stream while the GPU still computes the
    previous step. The host does not wait for the copy.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copied = tensor.pin_memory().to(device, non_blocking=True)
    current.wait_stream(stream)
    copied.record_stream(current)  # keeps the memory until the current stream has read it
    return copied


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the CUDA stream that is used for copying batches to a GPU."""
    return torch.cuda.Stream(device)


AUX_LOSS = "aux_loss"
"""The name of the auxiliary loss that layers add, such as the load-balancing loss of experts.

The auxiliary loss of a step is the mean over its micro-batches, weighted by the number of tokens
without padding.
"""


def forward_hidden(
    model: LanguageModule, inputs: Mapping[str, Tensor], *, gather_positions: Tensor | None = None
) -> tuple[Tensor, LossTerms]:
    """Run the model on `inputs`. Returns its hidden states and the auxiliary loss of its layers.

    The hidden states of all positions are returned, [B, T, D]. If `gather_positions` is given, only
    those of M selected positions are returned, [M, D]. It contains flat indices into [B * T], int64
    [M].

    The auxiliary loss is a dict. It is empty if the layers have no auxiliary loss. Otherwise, it
    maps `AUX_LOSS` to the auxiliary loss times the number of tokens.
    """
    hidden, loss = model.read(**inputs, gather_positions=gather_positions)
    if loss is None:
        return hidden, {}
    real = inputs.get("attention_mask", inputs.get("document_ids"))
    tokens = inputs["input_ids"].numel() if real is None else real.count_nonzero()
    return hidden, {AUX_LOSS: loss * tokens}


def token_losses(model: LanguageModule, batch: TensorBatch, *, smoothing: float = 0.0) -> LossTerms:
    """Compute the cross-entropy of the LM head, summed over the labelled positions, in nats.

    Returns a dict with the cross-entropy as "loss" and, if the layers have one, their auxiliary
    loss. `smoothing` is the amount of label smoothing.
    """
    hidden, terms = forward_hidden(model, batch.inputs, gather_positions=batch.label_positions)
    return {"loss": model.lm_loss(hidden, batch.targets, smoothing=smoothing), **terms}
