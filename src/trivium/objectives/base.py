"""What every objective is: rows -> `Batch` on the CPU, then `Batch` -> `Loss` on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.models import LanguageModule
from trivium.nn.loss import Loss


@dataclass(frozen=True)
class TensorBatch:
    """A `Batch` on the device, its labels as flat positions and targets.

    Positions [M] index [B * T]; targets [M]. They are found on the host, so that picking the
    labelled hidden states never waits for the device. `text_labels` are as in the batch.
    """

    inputs: dict[str, Tensor]
    label_positions: Tensor
    targets: Tensor
    text_labels: Tensor | None = None


def to_device(batch: Batch, device: torch.device) -> TensorBatch:
    """All whole numbers of a batch in one copy (pinned where the device is a GPU)."""
    arrays = batch.arrays()
    labels = arrays.pop("labels", np.empty(0, dtype=np.int64)).ravel()
    positions = np.flatnonzero(labels != NO_LOSS)
    told = arrays.pop("text_labels", None)
    arrays |= {"label_positions": positions, "targets": labels[positions]}
    flat = _copied(np.concatenate([array.ravel() for array in arrays.values()]), device)
    pieces = flat.split([array.size for array in arrays.values()])
    tensors = {
        name: piece.view(array.shape)
        for (name, array), piece in zip(arrays.items(), pieces, strict=True)
    }
    return TensorBatch(
        label_positions=tensors.pop("label_positions"),
        targets=tensors.pop("targets"),
        text_labels=None if told is None else _copied(told, device),
        inputs=tensors,
    )


def _copied(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Objective(ABC):
    """A way to train: what is asked of a model.

    `heads` are the kinds of head that the loss needs, of which a model has at least one.
    """

    heads: tuple[str, ...]

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms of the loss."""
        return ("loss",)

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """How many labels every term of the loss has, told on the host."""
        return (batch.num_labels,)

    @abstractmethod
    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats summed over the labels of the batch."""


class TextObjective(Objective):
    """An objective that makes its own questions from plain text."""

    @property
    def needs_documents(self) -> bool:
        """Whether rows must be taken with their documents."""
        return False

    @abstractmethod
    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Inputs and labels of some rows; depends on nothing but the arguments."""


def token_loss(model: LanguageModule, batch: TensorBatch) -> Loss:
    """Cross-entropy of the labelled positions through the vocabulary head."""
    hidden = model(**batch.inputs, select=batch.label_positions)
    return Loss(model.vocabulary_loss(hidden, batch.targets), len(batch.targets))


def row_inputs(rows: RowBatch) -> dict[str, np.ndarray]:
    """What limits attention in these rows: padding, or documents with positions of their own."""
    length = rows.input_ids.shape[1]
    if rows.document_ids is not None:
        return {
            "document_ids": rows.document_ids,
            "position_ids": _positions_in_documents(rows.document_ids),
        }
    if (rows.lengths < length).any():
        real = np.arange(length) < rows.lengths[:, None]
        return {"attention_mask": real.astype(np.int64)}
    return {}


def _positions_in_documents(document_ids: np.ndarray) -> np.ndarray:
    """Positions that start at 0 in every document: int64 [B, T].

    >>> _positions_in_documents(np.array([[1, 1, 2, 2, 2]]))
    array([[0, 1, 0, 1, 2]])
    """
    column = np.broadcast_to(np.arange(document_ids.shape[1]), document_ids.shape)
    first = np.zeros_like(document_ids)
    starts = document_ids[:, 1:] != document_ids[:, :-1]
    first[:, 1:] = np.where(starts, column[:, 1:], 0)
    return column - np.maximum.accumulate(first, axis=1)
