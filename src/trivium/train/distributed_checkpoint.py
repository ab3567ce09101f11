"""Checkpoints of several processes, by `torch.distributed.checkpoint` on safetensors.

Every process writes its part of the tensors in the background while training goes on; the first
one then joins the parts into the files that a single process writes. So a checkpoint does not
depend on the number of processes or the layout, and is read by others: each takes what it holds.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from trivium.errors import CheckpointError
from trivium.model_folder import WEIGHTS
from trivium.train.checkpoint import (
    OPTIMIZER,
    checkpoint_to_resume,
    new_checkpoint,
    read_state,
    restore,
    save_checkpoint,
    why_not_saved,
)
from trivium.train.distributed import Parallel
from trivium.train.optimizers import Optimizers, load_state_tensors, state_tensors
from trivium.train.trainer import TrainState

# The files that DCP makes of tensors 1 (weights) and 2 (optimizer state) of 2.
_JOINED = {
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": OPTIMIZER,
}


class Checkpoints:
    """The checkpoints of a run of one process or several, which write them in the background.

    `files` and `keep` are as in `save_checkpoint`.
    """

    def __init__(
        self, folder: Path, parallel: Parallel, *, files: Sequence[Path] = (), keep: int = 3
    ) -> None:
        self.folder, self.parallel, self.files, self.keep = folder, parallel, files, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Any] | None = None

    def save(self, model: nn.Module, optimizers: Optimizers, state: TrainState) -> None:
        """Write a checkpoint of the tensors as they are now; all processes take part.

        Raises CheckpointError as `save_checkpoint`. Several processes wait for the
        checkpoint before, and raise its error.
        """
        if self.parallel.size == 1:
            files, keep = self.files, self.keep
            save_checkpoint(self.folder, model, optimizers, state, files=files, keep=keep)
            return
        self.wait()
        self.parallel.barrier()
        parts = self.folder / f".step-{state.step:08}.tmp"  # what a killed run leaves is removed
        weights, moments = model.state_dict(), state_tensors(optimizers, model)
        # DCP loses scalars when it joins parts (PyTorch 2.13).
        moments = {name: value if value.ndim else value[None] for name, value in moments.items()}
        writer = HuggingFaceStorageWriter(
            str(parts),
            fqn_to_index_mapping=dict.fromkeys(weights, 1) | dict.fromkeys(moments, 2),
            save_distributed=True,
            enable_consolidation=True,
        )
        written = async_save(
            {**weights, **moments},
            storage_writer=writer,
            process_group=self.parallel.checkpoint_group,
        )
        assert isinstance(written, Future)
        state = dataclasses.replace(state)  # training changes it
        self._pending = self._thread.submit(self._complete, written, parts, state)

    def wait(self) -> None:
        """Wait for the checkpoint that is being written. Raises CheckpointError if it failed."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def restore(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        warn: Callable[[str], None],
        *,
        verify: bool = True,
    ) -> TrainState:
        """Load the last good checkpoint, of which every process reads its part; as `restore`."""
        if self.parallel.size == 1:
            return restore(self.folder, model, optimizers, warn, verify=verify)
        step = -1
        if self.parallel.is_main:
            newest = checkpoint_to_resume(self.folder, warn, verify=verify)
            step = int(newest.name.removeprefix("step-"))
        [step] = self.parallel.all_reduce_max(step)
        checkpoint = self.folder / f"step-{int(step):08}"
        state, tensors = read_state(checkpoint), model.state_dict()
        try:
            moments = _empty_moments(checkpoint / OPTIMIZER, model)
            tensors |= moments
            reader = HuggingFaceStorageReader(str(checkpoint))
            load(tensors, storage_reader=reader, process_group=self.parallel.checkpoint_group)
            load_state_tensors(optimizers, model, moments)
        except SafetensorError as error:
            raise CheckpointError(f"{checkpoint}: {OPTIMIZER} cannot be read: {error}") from None
        except (KeyError, RuntimeError, ValueError, CheckpointException) as error:
            raise CheckpointError(f"{checkpoint}: it belongs to another model: {error}") from None
        return state

    def _complete(self, written: Future[Any], parts: Path, state: TrainState) -> None:
        try:
            written.result()
            if self.parallel.is_main:
                with new_checkpoint(
                    self.folder, state, files=self.files, keep=self.keep
                ) as partial:
                    for joined, name in _JOINED.items():
                        os.replace(parts / joined, partial / name)
        except (CheckpointException, OSError) as error:
            checkpoint = self.folder / f"step-{state.step:08}"
            raise CheckpointError(why_not_saved(error, checkpoint)) from error
        finally:
            if self.parallel.is_main:
                shutil.rmtree(parts, ignore_errors=True)


def _empty_moments(file: Path, model: nn.Module) -> dict[str, Tensor]:
    """Tensors to read an optimizer's state into, sharded as the parameters they belong to."""
    parameters, moments = dict(model.named_parameters()), {}
    with safe_open(file, "pt") as stored:
        for name in stored.keys():  # noqa: SIM118  # no dict
            parameter = parameters[name.rpartition("/")[0]].detach()
            shape = stored.get_slice(name).get_shape()  # of a step []; of several processes [1]
            is_step = name.endswith("/step")  # one number, of a parameter of any shape
            moments[name] = torch.zeros(shape) if is_step else torch.zeros_like(parameter)
    return moments
