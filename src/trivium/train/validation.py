"""Validation loss: the same rows or examples with the same noise every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from trivium.data.batch import Batch
from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import RowRandom, permutation
from trivium.data.rows import Rows
from trivium.objectives import Objective, to_device
from trivium.text.vocabulary import Vocabulary
from trivium.train.loader import cuts_by_length
from trivium.train.trainer import TrainStep, named_means

_ROWS_AT_A_TIME, _TOKENS_AT_A_TIME = 32, 4096


@dataclass(frozen=True)
class HeldOutRows:
    """A fixed part of the held-out rows of a source, spread over all of them.

    Args:
        share: of the training steps.
        tokens: how many tokens to evaluate on.
    """

    name: str
    objective: Objective
    share: float
    rows: Rows
    vocabulary: Vocabulary
    tokens: int
    separate_documents: bool = False

    def batches(self) -> Iterator[Batch]:
        """The rows, some at a time."""
        count = min(len(self.rows), max(1, self.tokens // self.rows.length))
        indices = np.sort(permutation(0, 0, len(self.rows))[:count])
        with_documents = self.separate_documents or self.objective.needs_documents
        for start in range(0, count, _ROWS_AT_A_TIME):
            chosen = indices[start : start + _ROWS_AT_A_TIME]
            rows = self.rows.take(chosen, with_documents=with_documents)
            yield self.objective.prepare(rows, RowRandom(0, chosen), self.vocabulary)


@dataclass(frozen=True)
class HeldOutExamples:
    """The encoded held-out examples of a source."""

    name: str
    objective: Objective
    share: float
    examples: EncodedExamples
    vocabulary: Vocabulary

    def batches(self) -> Iterator[Batch]:
        """All examples, those of similar length together."""
        order = np.argsort(-self.examples.lengths, kind="stable")
        for start, stop in cuts_by_length(self.examples.lengths[order], _TOKENS_AT_A_TIME):
            chosen = order[start:stop]
            rows = self.examples.take(chosen)
            yield self.objective.prepare(rows, RowRandom(0, chosen), self.vocabulary)


HeldOut = HeldOutRows | HeldOutExamples


@torch.no_grad()
def validation_losses(
    model: nn.Module, sources: Sequence[HeldOut], precision: torch.dtype
) -> dict[str, float]:
    """Mean losses by the names they are logged with, sources in proportion to their shares.

    Leaves the model in evaluation mode.
    """
    device = next(model.parameters()).device
    train_step = TrainStep(model).eval()
    enabled, parts = precision is not torch.float32, []
    for source in sources:
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        for batch in source.batches():
            with torch.autocast(device.type, precision, enabled=enabled):
                losses = train_step(source.objective, to_device(batch, device))
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0.0) + float(loss.sum)
                counts[name] = counts.get(name, 0.0) + float(loss.count)
        means = {name: total / max(counts[name], 1) for name, total in sums.items()}
        parts.append((source.name, source.share, means, source.objective.weights()))
    return named_means("valid", parts) if parts else {}
