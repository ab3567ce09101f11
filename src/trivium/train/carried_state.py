"""The state that a model carries from row to row: truncated backpropagation through time.

A step reads several lanes of a text (`contiguous_rows`). A row continues with the state that the
previous row has left in its lane. Gradients end at the beginning of the row.
Source: Williams and Peng 1990, "An efficient gradient-based algorithm for on-line training of
recurrent network trajectories".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from trivium.models import LanguageModule
from trivium.objectives import TensorBatch
from trivium.objectives.tensor_batch import copy_to_device
from trivium.train.distributed import SINGLE_PROCESS, Parallel
from trivium.train.loader import BatchStream


class CarriedState:
    """The state of a model for every lane of a stream, in a slot of a cache.

    All processes have slots for all lanes, and fill those of their own micro-batches.
    """

    def __init__(self, model: LanguageModule, stream: BatchStream) -> None:
        self.model, text_streams = model, stream.rows_per_step
        self.cache = model.new_cache(
            text_streams, stream.contiguous_steps_per_epoch * stream.longest
        )
        self._own = torch.zeros(text_streams, dtype=torch.bool, device=model.device)
        self._begun: tuple[int, list[Tensor]] | None = None  # a step, and what was there before

    def begin(self, step: int, *, is_prefill: bool) -> None:
        """Prepare the lanes for the micro-batches of a step; with `is_prefill` all lanes are empty.

        If memory runs out during a step, a second call restores the state from before the step.
        """
        kept = [*self._tensors().values()]
        if is_prefill:
            for text_stream in range(self.cache.num_slots):
                self.cache.free(text_stream)
        elif self._begun is not None and self._begun[0] == step:
            for tensor, before in zip(kept, self._begun[1], strict=True):
                tensor.copy_(before)
        self._begun = step, [tensor.clone() for tensor in kept]
        self._own.zero_()

    def continued(self, batch: TensorBatch, text_streams: np.ndarray) -> TensorBatch:
        """Return a micro-batch whose rows continue these lanes; the model extends them in place."""
        slots = copy_to_device(text_streams, self.model.device)
        self._own.index_fill_(0, slots, True)
        inputs = {**batch.inputs, "cache": self.cache, "slots": slots}
        return dataclasses.replace(batch, inputs=inputs)

    def gathered(self, parallel: Parallel) -> dict[str, Tensor]:
        """Return copies of the state of all processes, by name; all processes take part."""
        tensors = {}
        for name, tensor in self._tensors().items():
            own = torch.zeros_like(tensor)
            own[self._own] = tensor[self._own]
            tensors[name] = parallel.all_reduce({name: own})[name].cpu()
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], parallel: Parallel = SINGLE_PROCESS) -> None:
        """Set the state to what `gathered` returned with any number of processes."""
        for name, tensor in self._tensors().items():
            tensor.copy_(tensors[name])
        self._own.fill_(parallel.data_rank == 0)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors [lanes, ...] of the cache by name."""
        states = {
            f"layers.{layer}.{number}": tensor
            for layer, state in enumerate(self.cache.states)
            for number, tensor in enumerate(state.tensors)
        }
        return {"lengths": self.cache.lengths, **states}


def carried_state(model: nn.Module, stream: BatchStream) -> CarriedState | None:
    """Return an empty `CarriedState` if the stream's objective carries state, else None."""
    if not stream.objective.carries_state:
        return None
    assert isinstance(model, LanguageModule)
    return CarriedState(model, stream)
