"""Mean losses over several steps or batches, by source and term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trivium.nn.loss import Loss
from trivium.objectives import LossTerms
from trivium.train.loader import BatchStream


class LossMeter:
    """Sums and counts of losses since the last log line, by source and term.

    Sums are float64 and stay on the device until they are logged. `saved` is what `to_dict`
    returned.
    """

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        self.steps: dict[str, int] = {}
        self.losses: dict[str, dict[str, Loss]] = {}
        for source, (steps, terms) in (saved or {}).items():
            self.steps[source] = steps
            self.losses[source] = {
                term: Loss(torch.tensor(total, dtype=torch.float64), count)
                for term, (total, count) in terms.items()
            }

    def add(self, source: str, losses: LossTerms, label_counts: Mapping[str, int]) -> None:
        """Add the summed losses of a step or batch, and what they are divided by."""
        self.steps[source] = self.steps.get(source, 0) + 1
        totals = self.losses.setdefault(source, {})
        for term, total in losses.items():
            before = totals.get(term, ZERO)
            count = before.count + label_counts[term]
            totals[term] = Loss(before.sum + total.detach().double(), count)

    def means(
        self, split: str, streams: Sequence[BatchStream], shares: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Mean losses by the names they are logged with.

        `valid_loss`; of several sources also `valid_SOURCE`, of several terms `valid_TERM` or
        `valid_SOURCE/TERM`.

        Args:
            split: "train" or "valid".
            streams: of all sources.
            shares: of the sources in the loss; by their steps unless given.
        """
        shares = shares or self.steps
        total_share = sum(shares[source] for source in self.losses)
        named = {f"{split}_loss": 0.0}
        for stream in streams:
            if stream.name not in self.losses:
                continue
            prefix = f"{split}_{stream.name}/" if stream.name else f"{split}_"
            term_weights = stream.objective.term_weights()
            means = {
                term: float(total) / max(float(count), 1)
                for term, (total, count) in self.losses[stream.name].items()
            }
            loss = sum(term_weights.get(term, 1.0) * mean for term, mean in means.items())
            named[f"{split}_loss"] += loss * shares[stream.name] / total_share
            if stream.name:
                named[f"{split}_{stream.name}"] = loss
            if len(means) > 1:
                named |= {f"{prefix}{term}": mean for term, mean in means.items()}
        return named

    def total(self) -> float:
        """The sum of everything, to see whether it is finite."""
        return float(sum(loss.sum for terms in self.losses.values() for loss in terms.values()))

    def to_dict(self) -> dict[str, Any]:
        """Plain values that the constructor restores."""
        return {
            source: [steps, {t: [float(x.sum), x.count] for t, x in self.losses[source].items()}]
            for source, steps in self.steps.items()
        }


ZERO = Loss(torch.zeros(()), 0)
