"""Validation loss: the same rows with the same noise every time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trivium.data import Examples, RowRandom, Rows, permutation
from trivium.models import LanguageModule
from trivium.nn.loss import Loss, named_means
from trivium.objectives import Objective, TextObjective, to_device
from trivium.train.feed import cuts_by_length


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
        objective: TextObjective,
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
    def losses(self, model: LanguageModule, precision: torch.dtype) -> dict[str, float]:
        """Mean nats a label: the loss and, of several terms, each. Leaves evaluation mode on."""
        model.eval()
        device, found = model.device, list[Loss]()
        enabled = precision is not torch.float32
        for start in range(0, len(self.indices), self.batch):
            chosen = self.indices[start : start + self.batch]
            taken = self.rows.take(chosen, with_documents=self.separate_documents)
            batch = self.objective.prepare(taken, RowRandom(0, chosen))
            with torch.autocast(device.type, precision, enabled=enabled):
                loss = self.objective.loss(model, to_device(batch, device))
            found.append(loss)
        return mean_losses("valid", found)

    def loss(self, model: LanguageModule, precision: torch.dtype) -> float:
        """Mean nats a label, all terms together."""
        return self.losses(model, precision)["valid_loss"]


@torch.no_grad()
def example_losses(
    model: LanguageModule, objective: Objective, examples: Examples, *, batch_tokens: int = 4096
) -> dict[str, float]:
    """Mean losses of labelled examples, each seen once; the model must be in evaluation mode."""
    order = np.argsort(-examples.lengths, kind="stable")
    found = [
        objective.loss(model, to_device(examples.take(order[start:stop]), model.device))
        for start, stop in cuts_by_length(examples.lengths[order], batch_tokens)
    ]
    return mean_losses("valid", found)


def mean_losses(split: str, losses: Sequence[Loss]) -> dict[str, float]:
    """The mean of losses of several batches, by the names they are written down with."""
    means = []
    for term in zip(*(loss.terms for loss in losses)):
        count = sum(loss.count for loss in term)
        means.append(sum(float(loss.sum) for loss in term) / max(count, 1))
    terms = losses[0].terms if losses else ()
    return named_means(split, [t.name for t in terms], [t.weight for t in terms], means)
