"""Mean losses over several steps or batches, by source and loss term."""

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


def joined(record: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Merge two records of values for `metrics.jsonl`. Raises RecipeError for a duplicate name.

    Duplicates are possible, since the author of an objective names loss terms and metrics.
    """
    for name in record.keys() & more.keys():
        raise RecipeError(
            f"{name} is the name of two values, such as a term of the loss and a metric or a "
            "source: rename one of them in the objective, or the source in [[mix]]."
        )
    return {**record, **more}


def to_float64(total: Tensor) -> Tensor:
    """Convert a sum to float64, or to float32 on MPS, which does not support float64."""
    return total.float() if total.device.type == "mps" else total.double()


class LossMeter:
    """The losses of the last steps by loss term; each step belongs to one source.

    The sums are float64 and stay on their device until their values are needed.

    Args:
        window: the number of last steps to average over; None for all steps.
        saved: the return value of `to_list` of an earlier meter.
    """

    def __init__(self, window: int | None = None, saved: Sequence[Any] = ()) -> None:
        self.steps: deque[tuple[str, dict[str, Loss]]] = deque(maxlen=window)
        for source, terms in saved:
            losses = {
                term: Loss(torch.tensor(total, dtype=torch.float64), count)
                for term, (total, count) in terms.items()
            }
            self.steps.append((source, losses))

    def add(self, source: str, losses: LossTerms, label_counts: Mapping[str, int]) -> None:
        """Add the summed losses of a step or batch, and the label counts that divide the sums."""
        terms = {
            term: Loss(to_float64(total.detach()), label_counts[term])
            for term, total in losses.items()
        }
        self.steps.append((source, terms))

    def means(
        self,
        split: str,
        streams: Sequence[BatchStream],
        probabilities: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Return mean losses by the names under which they are logged.

        The names are `valid_loss` and, with several sources, `valid_SOURCE`. With several loss
        terms, they are also `valid_TERM` or `valid_SOURCE/TERM`.

        Args:
            split: "train" or "valid".
            streams: the streams of all sources.
            probabilities: the weight of each source in the loss; None for its number of steps.
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
            named = joined(
                named, {f"{prefix}{term}": means[term] for term in means if term in apart}
            )
        return named

    def to_list(self) -> list[Any]:
        """Return the meter as plain values, from which the constructor can restore it."""
        return [
            [source, {term: [float(loss.sum), loss.count] for term, loss in terms.items()}]
            for source, terms in self.steps
        ]

    def _sum_by_source(self) -> dict[str, dict[str, Loss]]:
        """Return the sum of losses and the number of labels, by source and loss term."""
        sums: dict[str, dict[str, Loss]] = {}
        for source, terms in self.steps:
            of_source = sums.setdefault(source, {})
            for term, loss in terms.items():
                before = of_source.get(term, Loss(torch.zeros_like(loss.sum), 0))
                of_source[term] = Loss(before.sum + loss.sum, before.count + loss.count)
        return sums
