"""The loader of policy-gradient runs: it samples responses to the prompts of each step.

Prompts are prepared one step ahead. Responses are sampled when their step begins, with the current
weights. The responses are a function of (weights, seed, step). Therefore a resumed run samples the
same responses, and checkpoints do not contain them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import torch

from trivium.data.batch import Batch
from trivium.data.row_order import derived_seed
from trivium.models import LanguageModule
from trivium.objectives import AUX_LOSS
from trivium.objectives.policy import PolicyGradient
from trivium.train.loader import GlobalBatch, Loader, equal_part_size
from trivium.train.whole_model import WholeModel


@dataclass(kw_only=True)
class RolloutLoader(Loader):
    """A loader that adds responses sampled from the model to its batches of prompts.

    Batches for objectives other than policy gradients are not changed.

    Args:
        model: the model that samples responses. All processes sample some of them.
        precision: the dtype of activations.
    """

    model: WholeModel
    precision: torch.dtype = torch.float32
    _drawn: tuple[int, Batch] | None = field(default=None, init=False)

    def steps_from(self, first_step: int) -> Iterator[GlobalBatch]:
        """Yield the batches of all steps, starting at `first_step`, with sampled responses."""
        for step, batch in enumerate(super().steps_from(first_step), start=first_step):
            yield self._add_responses(batch, step)

    def halve_micro_batches(self, step: int) -> GlobalBatch:
        """Halve the micro-batch size for all following batches. Returns the batch of `step`.

        The batch contains the responses that were already sampled for this step.
        """
        return self._add_responses(super().halve_micro_batches(step), step)

    def _add_responses(self, batch: GlobalBatch, step: int) -> GlobalBatch:
        """Sample responses to a batch of prompts. Returns a batch of prompts with responses.

        If responses were already sampled for the same step, those are used. If the objective is not
        a policy gradient, the batch is returned unchanged.
        """
        objective, module = batch.stream.objective, self.model.whole
        if not isinstance(objective, PolicyGradient):
            return batch
        if self._drawn is None or self._drawn[0] != step:
            was_training, enabled = module.training, self.precision is not torch.float32
            seed, lm = derived_seed(self.seed, step), self.model.lm
            module.eval()
            autocast = torch.autocast(self.model.device.type, self.precision, enabled=enabled)
            with autocast, self.model.gathered():
                samples = objective.rollout(
                    lm, cast(LanguageModule, module), batch.micro_batches, seed, self.model.map
                )
            module.train(was_training)
            self._drawn = step, samples
        _, samples = self._drawn
        most = max(1, batch.micro_batch_tokens // samples.input_ids.shape[1])
        size = equal_part_size(-(-samples.num_rows // self.parallel.data_parallel_size), most)
        parts = [*self.parallel.shard(range(0, samples.num_rows, size))]
        counts = objective.loss_denominators(samples)
        if batch.stream.has_aux_loss:
            counts[AUX_LOSS] = samples.num_tokens
        return dataclasses.replace(
            batch,
            micro_batches=tuple(samples.slice_rows(start, start + size) for _, start, _ in parts),
            micro_batch_weights=tuple((number, weight) for number, _, weight in parts),
            loss_denominators=counts,
            num_tokens=samples.num_tokens,
            num_iterations=objective.num_iterations,
        )
