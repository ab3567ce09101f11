"""Validation loss: the same rows with the same noise every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    def losses(self, model: LanguageModule, precision: torch.dtype) -> dict[str, float]:
        """Mean nats a label: the loss and, of several terms, each. Leaves evaluation mode on."""
        return mean_losses("valid", self.found(model, precision))

    def loss(self, model: LanguageModule, precision: torch.dtype) -> float:
        """Mean nats a label, all terms together."""
        return self.losses(model, precision)["valid_loss"]

    @torch.no_grad()
    def found(self, model: LanguageModule, precision: torch.dtype) -> list[Loss]:
        """The losses, batch by batch. Leaves evaluation mode on."""
        model.eval()
        device, found = model.device, list[Loss]()
        enabled = precision is not torch.float32
        with_documents = self.separate_documents or self.objective.needs_documents
        for start in range(0, len(self.indices), self.batch):
            chosen = self.indices[start : start + self.batch]
            taken = self.rows.take(chosen, with_documents=with_documents)
            batch = self.objective.prepare(taken, RowRandom(0, chosen))
            with torch.autocast(device.type, precision, enabled=enabled):
                loss = self.objective.loss(model, to_device(batch, device))
            found.append(loss)
        return found


@dataclass(frozen=True)
class ValidationPart:
    """One of several validations: its share of the training rows, and what it is a part of.

    `groups` are names of objective and source, as far as there are several.
    """

    validation: Validation
    share: float
    groups: tuple[str, ...]


class MixedValidation:
    """Several validations, weighed as training weighs what they stand for.

    A part counts by its share, however many rows of it are looked at: sums and counts of labels
    are those of one row, on average, times the share.
    """

    def __init__(self, parts: Sequence[ValidationPart]) -> None:
        self.parts = tuple(parts)

    def losses(self, model: LanguageModule, precision: torch.dtype) -> dict[str, float]:
        """Mean nats a label, of all parts together and of every group."""
        found = {part: part.validation.found(model, precision) for part in self.parts}
        named = _weighed(found)
        for group in dict.fromkeys(name for part in self.parts for name in part.groups):
            inside = {part: losses for part, losses in found.items() if group in part.groups}
            named[f"valid_{group}"] = _weighed(inside)["valid_loss"]
        return named


def _weighed(found: dict[ValidationPart, list[Loss]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    weights: dict[str, float] = {}
    for part, losses in found.items():
        scale = part.share / len(part.validation.indices)
        for term in (term for loss in losses for term in loss.terms):
            sums[term.name] = sums.get(term.name, 0.0) + scale * float(term.sum)
            counts[term.name] = counts.get(term.name, 0.0) + scale * term.count
            if term.count:
                weights[term.name] = term.weight
    asked = [name for name, count in counts.items() if count]
    means = [sums[name] / counts[name] for name in asked]
    return named_means("valid", asked, [weights[name] for name in asked], means)


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
