"""Validation loss: the same rows with the same noise every time."""

from __future__ import annotations

import numpy as np
import torch

from trivium.data import RowRandom, Rows, permutation
from trivium.models import LanguageModule
from trivium.objectives import Objective, to_device


class Validation:
    """A fixed part of the held-out rows, spread over all of them.

    Args:
        rows: the held-out rows.
        tokens: how many tokens to look at; None: all.
        batch: rows at a time.
        separate_documents: keep packed documents from seeing each other.
    """

    def __init__(
        self,
        objective: Objective,
        rows: Rows,
        *,
        tokens: int | None,
        batch: int,
        separate_documents: bool = False,
    ) -> None:
        self.objective, self.rows, self.batch = objective, rows, batch
        self.separate_documents = separate_documents
        wanted = len(rows) if tokens is None else min(len(rows), max(1, tokens // rows.length))
        self.indices = np.sort(permutation(0, 0, len(rows))[:wanted])

    @torch.no_grad()
    def loss(self, model: LanguageModule, precision: torch.dtype) -> float:
        """Mean nats a label. Leaves the model in evaluation mode."""
        model.eval()
        device, total, count = model.device, 0.0, 0
        enabled = precision is not torch.float32
        for start in range(0, len(self.indices), self.batch):
            chosen = self.indices[start : start + self.batch]
            taken = self.rows.take(chosen, with_documents=self.separate_documents)
            batch = self.objective.prepare(taken, RowRandom(0, chosen))
            with torch.autocast(device.type, precision, enabled=enabled):
                loss = self.objective.loss(model, to_device(batch, device))
            total += float(loss.sum)
            count += loss.count
        return total / max(count, 1)
