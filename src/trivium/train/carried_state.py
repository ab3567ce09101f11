"""State carried from one step to the next, for truncated backpropagation through time (TBPTT).

The training text is split into contiguous text streams, one per row of the batch. In every step,
each row continues its text stream: the model starts from the state that it had at the end of the
stream's previous row. Gradients stop at the beginning of a row.

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
    """The model's recurrent state or segment memory for every text stream of a data source.

    Each text stream has one slot in a cache. All processes allocate all slots, but each process
    updates only the slots of its own micro-batches.
    """

    def __init__(self, model: LanguageModule, stream: BatchStream) -> None:
        self.model, text_streams = model, stream.rows_per_step
        self.cache = model.new_cache(
            text_streams, stream.contiguous_steps_per_epoch * stream.longest
        )
        self._own = torch.zeros(text_streams, dtype=torch.bool, device=model.device)
        self._begun: tuple[int, list[Tensor]] | None = None  # a step, and the state before it

    def begin_step(self, step: int, *, is_prefill: bool) -> None:
        """Prepare the states of the text streams for the micro-batches of a step.

        If `is_prefill` is true, the states of all text streams are cleared. A second call for the
        same step restores the states from before the step, so that the step can be repeated after
        running out of memory.
        """
        kept = [*self._get_named_tensors().values()]
        if is_prefill:
            for text_stream in range(self.cache.num_slots):
                self.cache.free(text_stream)
        elif self._begun is not None and self._begun[0] == step:
            for tensor, before in zip(kept, self._begun[1], strict=True):
                tensor.copy_(before)
        self._begun = step, [tensor.clone() for tensor in kept]
        self._own.zero_()

    def attach_state(self, batch: TensorBatch, text_streams: np.ndarray) -> TensorBatch:
        """Return a micro-batch whose rows continue the given text streams.

        The model then reads the states of these text streams and updates them in place.
        `text_streams` contains the index of the text stream of each row.
        """
        slots = copy_to_device(text_streams, self.model.device)
        self._own.index_fill_(0, slots, True)
        inputs = {**batch.inputs, "cache": self.cache, "slots": slots}
        return dataclasses.replace(batch, inputs=inputs)

    def gather_tensors(self, parallel: Parallel) -> dict[str, Tensor]:
        """Gather the state of all text streams from all processes. Returns copies, by tensor name.

        All processes must call this method.
        """
        tensors = {}
        for name, tensor in self._get_named_tensors().items():
            own = torch.zeros_like(tensor)
            own[self._own] = tensor[self._own]
            tensors[name] = parallel.all_reduce({name: own})[name].cpu()
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], parallel: Parallel = SINGLE_PROCESS) -> None:
        """Load the state tensors returned by `gather_tensors`, for any number of processes."""
        for name, tensor in self._get_named_tensors().items():
            tensor.copy_(tensors[name])
        self._own.fill_(parallel.data_parallel_rank == 0)

    def _get_named_tensors(self) -> dict[str, Tensor]:
        """Return the state tensors of all text streams by name, each [text streams, ...]."""
        states = {
            f"layers.{layer}.{number}": tensor
            for layer, state in enumerate(self.cache.states)
            for number, tensor in enumerate(state.tensors)
        }
        return {"lengths": self.cache.lengths, **states}


def create_carried_state(model: nn.Module, stream: BatchStream) -> CarriedState | None:
    """Create the state of a batch stream. Returns None if its objective carries no state."""
    if not stream.objective.carries_state:
        return None
    assert isinstance(model, LanguageModule)
    return CarriedState(model, stream)
