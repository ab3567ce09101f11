"""State carried from one step to the next: truncated backpropagation through time (TBPTT).

The text is split into contiguous text streams, one per row of the batch (`contiguous_rows`). In
every step, each row continues with the state that the previous row of the same text stream ended
with. Gradients stop at the beginning of the row.

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
    """The model's recurrent state or segment memory for every text stream of a source.

    Each text stream has one slot of a cache. All processes have slots for all text streams, but
    each process updates only the slots of its own micro-batches.
    """

    def __init__(self, model: LanguageModule, stream: BatchStream) -> None:
        self.model, text_streams = model, stream.rows_per_step
        self.cache = model.new_cache(
            text_streams, stream.contiguous_steps_per_epoch * stream.longest
        )
        self._own = torch.zeros(text_streams, dtype=torch.bool, device=model.device)
        self._begun: tuple[int, list[Tensor]] | None = None  # a step, and the state before it

    def begin(self, step: int, *, is_prefill: bool) -> None:
        """Prepare the text streams for the micro-batches of a step.

        With `is_prefill`, all text streams start with an empty state. If memory runs out during a
        step, a second call for the same step restores the state from before the step.
        """
        kept = [*self._named_tensors().values()]
        if is_prefill:
            for text_stream in range(self.cache.num_slots):
                self.cache.free(text_stream)
        elif self._begun is not None and self._begun[0] == step:
            for tensor, before in zip(kept, self._begun[1], strict=True):
                tensor.copy_(before)
        self._begun = step, [tensor.clone() for tensor in kept]
        self._own.zero_()

    def continued(self, batch: TensorBatch, text_streams: np.ndarray) -> TensorBatch:
        """Return a micro-batch whose rows continue the given text streams.

        The model updates the state of these text streams in place. `text_streams` contains one
        index per row.
        """
        slots = copy_to_device(text_streams, self.model.device)
        self._own.index_fill_(0, slots, True)
        inputs = {**batch.inputs, "cache": self.cache, "slots": slots}
        return dataclasses.replace(batch, inputs=inputs)

    def gather_tensors(self, parallel: Parallel) -> dict[str, Tensor]:
        """Return copies of the state tensors of all processes, by name; all must call it."""
        tensors = {}
        for name, tensor in self._named_tensors().items():
            own = torch.zeros_like(tensor)
            own[self._own] = tensor[self._own]
            tensors[name] = parallel.all_reduce({name: own})[name].cpu()
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], parallel: Parallel = SINGLE_PROCESS) -> None:
        """Load state tensors that `gather_tensors` returned, from any number of processes."""
        for name, tensor in self._named_tensors().items():
            tensor.copy_(tensors[name])
        self._own.fill_(parallel.data_rank == 0)

    def _named_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the cache by name, each [text streams, ...]."""
        states = {
            f"layers.{layer}.{number}": tensor
            for layer, state in enumerate(self.cache.states)
            for number, tensor in enumerate(state.tensors)
        }
        return {"lengths": self.cache.lengths, **states}


def carried_state(model: nn.Module, stream: BatchStream) -> CarriedState | None:
    """Return an empty `CarriedState` if the objective of the source carries state, else None."""
    if not stream.objective.carries_state:
        return None
    assert isinstance(model, LanguageModule)
    return CarriedState(model, stream)
