"""Mean losses over several steps or batches, by data source and loss term."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trivium.errors import RecipeError
from trivium.nn.loss import Loss
from trivium.objectives import AUX_LOSS, LossTerms
from trivium.train.loader import BatchStream


def merge_records(record: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Merge two records of metrics for `metrics.jsonl`. Raises RecipeError for a duplicate name.

    Duplicates are possible: recipes name the data sources, and objectives name the loss terms and
    the metrics.
    """
    for name in record.keys() & metrics.keys():
        raise RecipeError(
            f"{name} is the name of two values, such as a term of the loss and a metric or a "
            "source: rename one of them in the objective, or the source in [[mix]]."
        )
    return {**record, **metrics}


def to_float64(total: Tensor) -> Tensor:
    """Convert a summed loss to float64, or to float32 on MPS, which does not support float64."""
    return total.float() if total.device.type == "mps" else total.double()


class LossMeter:
    """The mean losses of recent steps, by data source and loss term.

    The sums are float64 and stay on their device until their values are needed.

    Args:
        window: the number of recent steps to average over; None for all steps.
        saved: the content of an earlier meter, as returned by its `to_list`.
    """

    def __init__(self, window: int | None = None, saved: Sequence[Any] = ()) -> None:
        self.steps: deque[tuple[str, dict[str, Loss]]] = deque(maxlen=window)
        for source, terms in saved:
            losses = {
                term: Loss(torch.tensor(total, dtype=torch.float64), count)
                for term, (total, count) in terms.items()
            }
            self.steps.append((source, losses))

    def add(self, source: str, losses: LossTerms, loss_denominators: Mapping[str, int]) -> None:
        """Add the summed losses of a step, and the numbers of labels to divide the sums by.

        `source` is the name of the data source of the step.
        """
        terms = {
            term: Loss(to_float64(total.detach()), loss_denominators[term])
            for term, total in losses.items()
        }
        self.steps.append((source, terms))

    def compute_means(
        self,
        split: str,
        streams: Sequence[BatchStream],
        probabilities: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Compute the mean losses. Returns them by the names under which they are logged.

        The names are `valid_loss` and, with several sources, `valid_SOURCE`. Objectives with
        several loss terms also have `valid_TERM` or `valid_SOURCE/TERM`.

        Args:
            split: "train" or "valid".
            streams: the streams of all sources.
            probabilities: the weight of each source in `valid_loss`; None to weight each source by
                its number of steps.
        """
        sums = self._sum_by_source()
        probabilities = probabilities or Counter(source for source, _ in self.steps)
        total_share = sum(probabilities[source] for source in sums)
        named = {f"{split}_loss": 0.0}
        for stream in streams:
            if stream.name not in sums:
                continue
            prefix = f"{split}_{stream.name}/" if stream.name else f"{split}_"
            term_weights = stream.objective.term_weights()
            means = {
                term: float(total) / max(float(count), 1)
                for term, (total, count) in sums[stream.name].items()
            }
            # The auxiliary loss of layers is logged separately: the loss stays in nats per token.
            nats = {term: mean for term, mean in means.items() if term != AUX_LOSS}
            loss = sum(term_weights.get(term, 1.0) * mean for term, mean in nats.items())
            named[f"{split}_loss"] += loss * probabilities[stream.name] / total_share
            if stream.name:
                named[f"{split}_{stream.name}"] = loss
            apart = means if len(nats) > 1 else means.keys() - nats.keys()
            named = merge_records(
                named, {f"{prefix}{term}": means[term] for term in means if term in apart}
            )
        return named

    def to_list(self) -> list[Any]:
        """Convert the meter to JSON-serializable values that the constructor accepts as `saved`."""
        return [
            [source, {term: [float(loss.sum), loss.count] for term, loss in terms.items()}]
            for source, terms in self.steps
        ]

    def _sum_by_source(self) -> dict[str, dict[str, Loss]]:
        """Sum the losses and label counts of all steps. Returns them by source and loss term."""
        sums: dict[str, dict[str, Loss]] = {}
        for source, terms in self.steps:
            of_source = sums.setdefault(source, {})
            for term, loss in terms.items():
                before = of_source.get(term, Loss(torch.zeros_like(loss.sum), 0))
                of_source[term] = Loss(before.sum + loss.sum, before.count + loss.count)
        return sums
