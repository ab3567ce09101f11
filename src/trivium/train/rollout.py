"""The loader of policy-gradient runs: it draws responses to the prompts of each step.

Prompts are prepared one step ahead. Responses are drawn when their step begins, with the current
weights. They are a function of (weights, seed, step), so that a resumed run draws the same
responses and nothing needs to be saved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from trivium.data.batch import Batch
from trivium.data.row_order import derived_seed
from trivium.language_model import LanguageModel
from trivium.objectives import AUX_LOSS
from trivium.objectives.policy import PolicyGradient
from trivium.train.loader import GlobalBatch, Loader, equal_parts


@dataclass(kw_only=True)
class RolloutLoader(Loader):
    """A loader whose batches contain the model's own responses, if the objective needs them.

    Args:
        lm: the model that draws responses; every process has the whole model.
        module: the trained module.
        precision: the precision of activations.
    """

    lm: LanguageModel
    module: Any
    precision: torch.dtype = torch.float32
    _drawn: tuple[int, Batch] | None = field(default=None, init=False)

    def steps_from(self, number: int) -> Iterator[GlobalBatch]:
        """Yield batches as `Loader.steps_from` does, with responses drawn at each step."""
        for step, batch in enumerate(super().steps_from(number), start=number):
            yield self._add_responses(batch, step)

    def halve_micro_batches(self, number: int) -> GlobalBatch:
        """Halve the micro-batches as `Loader.halve_micro_batches` does.

        The responses of the current step stay the same.
        """
        return self._add_responses(super().halve_micro_batches(number), number)

    def _add_responses(self, batch: GlobalBatch, step: int) -> GlobalBatch:
        """Return a batch of prompts with the responses drawn for a step.

        A batch of another objective is returned unchanged. The responses of the last step are
        reused if the step is the same.
        """
        objective, module = batch.stream.objective, self.module
        if not isinstance(objective, PolicyGradient):
            return batch
        if self._drawn is None or self._drawn[0] != step:
            was_training, enabled = module.training, self.precision is not torch.float32
            seed, map_over_ranks = derived_seed(self.seed, step), self.parallel.map
            module.eval()
            with torch.autocast(module.device.type, self.precision, enabled=enabled):
                samples = objective.rollout(
                    self.lm, module, batch.micro_batches, seed, map_over_ranks
                )
            module.train(was_training)
            self._drawn = step, samples
        _, samples = self._drawn
        most = max(1, batch.micro_batch_tokens // samples.input_ids.shape[1])
        size = equal_parts(-(-samples.num_rows // self.parallel.data_size), most)
        parts = [*self.parallel.shard(range(0, samples.num_rows, size))]
        counts = objective.label_counts(samples)
        if batch.stream.has_aux_loss:
            counts[AUX_LOSS] = samples.num_tokens
        return dataclasses.replace(
            batch,
            micro_batches=tuple(samples.rows(start, start + size) for _, start, _ in parts),
            micro_batch_weights=tuple((number, weight) for number, _, weight in parts),
            label_counts=counts,
            num_tokens=samples.num_tokens,
            num_iterations=objective.num_iterations,
        )
