"""Checkpoints: complete or absent, verified by checksum; nothing is unpickled.

A checkpoint is a folder `step-{n:08}` with the files of a model folder, `optimizer.safetensors`,
`state.json`, the state that a model carries from row to row (`carried.safetensors`) and
`checksums.json` (SHA-256 of every other file). The folder gets its name only when all of its files
are on the disk.

Several processes write a checkpoint by `torch.distributed.checkpoint` on safetensors: every process
writes its part of the tensors in the background while training continues. The first process then
joins the parts into the files that a single process writes. A checkpoint therefore does not depend
on the number of processes or the layout, and can be resumed with others.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from trivium.errors import OLD_VERSION_MESSAGE, CheckpointError
from trivium.files import (
    is_disk_full,
    pop_version,
    read_json,
    replace_folder,
    version_entry,
    write_json,
)
from trivium.interop.tensor_files import read_safetensors, write_safetensors
from trivium.messages import translated
from trivium.model_folder import (
    CHECKSUMS,
    WEIGHTS,
    checkpoints,
    find_damage,
    last_good_checkpoint,
    write_checksums,
)
from trivium.progress import ProgressLine
from trivium.train.callback import Callback
from trivium.train.carried_state import CarriedState
from trivium.train.distributed import SINGLE_PROCESS, Parallel
from trivium.train.optimizers import Optimizers, load_state_tensors, state_tensors
from trivium.train.trainer import TrainState

FORMAT_VERSION = 7
OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
CARRIED = "carried.safetensors"
# The files that DCP makes of tensors 1 (weights) and 2 (optimizer state) of 2.
_JOINED = {
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": OPTIMIZER,
}


def save_checkpoint(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizers: Optimizers,
    state: TrainState,
    *,
    carried: CarriedState | None = None,
    files: Sequence[Path] = (),
    keep: int = 3,
) -> Path:
    """Write `folder/step-{n:08}` whole or not at all, then delete all but the last `keep` good.

    `carried` is the state that the model carries from row to row, if the objective carries state.
    Those of `files` that exist are copied into the checkpoint: spec, tokenizer and settings of the
    run.

    Raises CheckpointError where the disk is full or not writable; earlier checkpoints stay.
    """
    saved = Checkpoints(Path(folder), SINGLE_PROCESS, carried=carried, files=files, keep=keep)
    saved.save(model, optimizers, state)
    return saved.path(state)


def checkpoint_to_resume(folder: Path, warn: Callable[[str], None], *, verify: bool = True) -> Path:
    """Return the newest undamaged checkpoint; `warn` is called for every newer, damaged one.

    Without `verify` the newest checkpoint is returned. Raises CheckpointError where there is none.
    """
    checkpoint = last_good_checkpoint(folder, lambda one: damage(one) if verify else None, warn)
    if checkpoint is not None:
        return checkpoint
    damaged = any(checkpoints(folder))
    problem = "all of its checkpoints are damaged" if damaged else "it has no checkpoint yet"
    raise CheckpointError(
        f"{folder.parent} cannot be resumed: {problem}. Start again with --overwrite, which "
        "replaces the run, or choose another --out."
    )


def damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None, by reading and comparing every file."""
    return find_damage(checkpoint, names=(), required=(WEIGHTS, OPTIMIZER, STATE))


def restore(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizers: Optimizers,
    warn: Callable[[str], None] = warnings.warn,
    *,
    carried: CarriedState | None = None,
    verify: bool = True,
) -> TrainState:
    """Load a checkpoint into a model and its optimizers, and return its state.

    `path` is a checkpoint or a folder. In a folder, the newest undamaged checkpoint is loaded, and
    `warn` is called for every newer, damaged one. Without `verify` no file is compared with its
    checksum.

    Raises CheckpointError where there is no checkpoint, or where it is damaged, of another format
    version, or of another model.
    """
    checkpoint = Path(path)
    if not (checkpoint / CHECKSUMS).exists():
        checkpoint = checkpoint_to_resume(checkpoint, warn, verify=verify)
    elif verify and (problem := damage(checkpoint)):
        raise CheckpointError(f"{checkpoint}: {problem}. Take the checkpoint before it.")
    state = read_state(checkpoint)
    try:
        model.load_state_dict(read_safetensors(checkpoint / WEIGHTS))
        load_state_tensors(optimizers, model, read_safetensors(checkpoint / OPTIMIZER))
        if carried is not None:
            carried.restore(read_safetensors(checkpoint / CARRIED))
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{checkpoint}: it belongs to another model: {error}") from None
    return state


class Checkpoints:
    """The checkpoints of a run; several processes write them in the background.

    `carried`, `files` and `keep` are as in `save_checkpoint`.
    """

    def __init__(
        self,
        folder: Path,
        parallel: Parallel,
        *,
        carried: CarriedState | None = None,
        files: Sequence[Path] = (),
        keep: int = 3,
    ) -> None:
        self.folder, self.parallel, self.carried = folder, parallel, carried
        self.files, self.keep = files, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Any] | None = None

    def path(self, state: TrainState) -> Path:
        """Return the folder of the checkpoint of a state."""
        return self.folder / f"step-{state.step:08}"

    def save(self, model: nn.Module, optimizers: Optimizers, state: TrainState) -> None:
        """Write a checkpoint of the tensors as they are now; all processes take part.

        Raises CheckpointError as `save_checkpoint`. Several processes first wait for the previous
        checkpoint, and raise its error.
        """
        carried = None if self.carried is None else self.carried.gathered(self.parallel)
        if self.parallel.size == 1:
            with self._new(state, carried) as partial:
                write_safetensors(partial / WEIGHTS, model.state_dict())
                write_safetensors(partial / OPTIMIZER, state_tensors(optimizers, model))
            return
        self.wait()
        self.parallel.barrier()
        parts = self.folder / f".step-{state.step:08}.tmp"  # what a killed run leaves is removed
        weights, moments = model.state_dict(), state_tensors(optimizers, model)
        # DCP joins no integers (PyTorch 2.13): such a table, which is not trained, is added later.
        tables = {name: one for name, one in weights.items() if not one.is_floating_point()}
        weights = {name: one for name, one in weights.items() if name not in tables}
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
        state = copy.deepcopy(state)  # training changes it
        self._pending = self._thread.submit(self._complete, written, parts, state, carried, tables)

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
        """Load the last good checkpoint as `restore` does; every process reads its part."""
        if self.parallel.size == 1:
            return restore(
                self.folder, model, optimizers, warn, carried=self.carried, verify=verify
            )
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
            if self.carried is not None:
                self.carried.restore(read_safetensors(checkpoint / CARRIED), self.parallel)
        except SafetensorError as error:
            raise CheckpointError(f"{checkpoint}: {OPTIMIZER} cannot be read: {error}") from None
        except (KeyError, RuntimeError, ValueError, CheckpointException) as error:
            raise CheckpointError(f"{checkpoint}: it belongs to another model: {error}") from None
        return state

    @contextmanager
    def _new(self, state: TrainState, carried: Mapping[str, Tensor] | None) -> Iterator[Path]:
        """Yield a temporary folder to fill with weights and optimizer state.

        The folder becomes the checkpoint when the block ends. Errors are as of `save_checkpoint`.
        """
        final = self.path(state)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replace_folder(final) as partial:
                yield partial
                if carried:
                    write_safetensors(partial / CARRIED, carried)
                content = {**version_entry(), "format": FORMAT_VERSION, **dataclasses.asdict(state)}
                write_json(partial / STATE, content)
                for file in self.files:
                    if file.is_file():
                        shutil.copyfile(file, partial / file.name)
                write_checksums(partial, sorted(path.name for path in partial.iterdir()))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(_why_not_saved(error, final)) from error
        _prune(self.folder, final, self.keep)

    def _complete(
        self,
        written: Future[Any],
        parts: Path,
        state: TrainState,
        carried: Mapping[str, Tensor] | None,
        tables: Mapping[str, Tensor],
    ) -> None:
        try:
            written.result()
            if self.parallel.is_main:
                with self._new(state, carried) as partial:
                    for joined, name in _JOINED.items():
                        os.replace(parts / joined, partial / name)
                    if tables:
                        weights = read_safetensors(partial / WEIGHTS)
                        write_safetensors(partial / WEIGHTS, {**weights, **tables})
        except (CheckpointException, OSError) as error:
            raise CheckpointError(_why_not_saved(error, self.path(state))) from error
        finally:
            if self.parallel.is_main:
                shutil.rmtree(parts, ignore_errors=True)


@dataclass
class SaveCheckpoints(Callback):
    """Writes the checkpoints of a run; every process has this callback.

    Args:
        checkpoints: the checkpoints of the run.
        model: the part of the model that this process trains.
        optimizers: the optimizers of the model.
        state: the state of the run, which training changes.
        line: where progress is shown.
        waits: whether callbacks after this one read the checkpoint.
    """

    checkpoints: Checkpoints
    model: nn.Module
    optimizers: Optimizers
    state: TrainState
    line: ProgressLine
    waits: bool

    def on_save(self, folder: Path) -> None:
        """Write a checkpoint to `folder`; several processes write it in the background."""
        self.line.update(translated("progress.saving"))
        self.checkpoints.save(self.model, self.optimizers, self.state)
        assert folder == self.checkpoints.path(self.state)
        if self.waits:
            self.checkpoints.wait()

    def on_end(self, error: BaseException | None) -> None:
        """Wait for the last checkpoint."""
        self.checkpoints.wait()


def read_state(checkpoint: Path) -> TrainState:
    """Return the state in a checkpoint. Raises CheckpointError for another format version."""
    data = read_json(checkpoint / STATE)
    if isinstance(data, dict) and not pop_version(data):
        raise CheckpointError(f"{checkpoint}: {OLD_VERSION_MESSAGE}")
    version = data.pop("format", None) if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{checkpoint}: checkpoint format {version}, but this version reads "
            f"{FORMAT_VERSION}; resume with the version that wrote it."
        )
    try:
        return TypeAdapter(TrainState).validate_python(data)
    except ValidationError as error:
        raise CheckpointError(f"{checkpoint}: {STATE} is not the state of a run: {error}") from None


def _prune(folder: Path, newest: Path, keep: int) -> None:
    """Delete the checkpoints beyond the last `keep` good ones; damaged ones do not count."""
    good = 0
    for checkpoint in checkpoints(folder):
        if good >= keep:
            shutil.rmtree(checkpoint, ignore_errors=True)
        elif checkpoint == newest or damage(checkpoint) is None:
            good += 1


def _why_not_saved(error: BaseException, target: Path) -> str:
    """Return the message for a checkpoint that could not be written."""
    if is_disk_full(error):
        return (
            f"{target}: not saved, the disk is full. What was saved before is untouched: "
            "free some space and continue with --resume."
        )
    return f"{target}: not saved: {error}. What was saved before is untouched."


def _empty_moments(file: Path, model: nn.Module) -> dict[str, Tensor]:
    """Return tensors to read an optimizer's state into, sharded as their parameters."""
    parameters, moments = dict(model.named_parameters()), {}
    with safe_open(file, "pt") as stored:
        for name in stored.keys():  # noqa: SIM118  # no dict
            parameter = parameters[name.rpartition("/")[0]].detach()
            shape = stored.get_slice(name).get_shape()  # of a step []; of several processes [1]
            is_step = name.endswith("/step")  # one number, of a parameter of any shape
            moments[name] = torch.zeros(shape) if is_step else torch.zeros_like(parameter)
    return moments
