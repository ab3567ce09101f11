"""Checkpoints: written atomically and verified by checksum. Loading never unpickles data.

A checkpoint is a folder `step-{n:08}`. It contains the files of a model folder,
`optimizer.safetensors`, `state.json`, and `checksums.json` (SHA-256 of every other file). For
objectives with TBPTT, it also contains the model state carried from step to step
(`carried.safetensors`). The folder gets its final name only after all of its files are on disk.

With several processes, `torch.distributed.checkpoint` (DCP) writes the tensors in the safetensors
format. Every process writes its shards to two files, such as `model-00002.safetensors` and
`optimizer-00002.safetensors`, and computes their checksums while it writes them. Shards on a GPU
are copied to host memory and written in the background while training continues. Shards on a CPU
are written without a copy, which would need as much host memory again. Every layout writes such
shards: with DDP, where all processes have the same tensors, DCP divides the tensors among the
processes, so that each process writes a part.

The shards are never joined on disk. A file of shards contains their offsets in the whole tensors.
Therefore any number of processes can resume a run, with any layout: each process reads the parts
that it needs. A single process joins the shards in memory, for training and for all other uses of
the model.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from trivium.errors import OLD_VERSION_MESSAGE, CheckpointError
from trivium.files import (
    HashedFile,
    is_disk_full,
    pop_version,
    read_json,
    replace_folder,
    version_entry,
    write_json,
)
from trivium.interop.tensor_files import read_safetensors, read_shards, write_safetensors
from trivium.messages import translated
from trivium.model_folder import (
    CHECKSUMS,
    WEIGHT_FILES,
    WEIGHTS,
    checkpoints,
    find_damaged_file,
    find_last_good_checkpoint,
    read_checksums,
    write_checksums,
)
from trivium.progress import ProgressLine
from trivium.train.callback import Callback
from trivium.train.carried_state import CarriedState
from trivium.train.distributed import SINGLE_PROCESS, Parallel
from trivium.train.optimizers import Optimizers, get_state_tensors, load_state_tensors
from trivium.train.trainer import TrainState

FORMAT_VERSION = 7
OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
OPTIMIZER_FILES = "optimizer*.safetensors"  # OPTIMIZER, or the shards of several processes
CARRIED = "carried.safetensors"
# DCP numbers the files of a process; these are the numbers in the names of the files.
_WEIGHTS_NUMBER, _OPTIMIZER_NUMBER = 1, 2


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
    """Write the checkpoint `folder/step-{n:08}` atomically, then delete old checkpoints.

    The last `keep` valid checkpoints remain.

    Args:
        folder: the folder of all checkpoints.
        model: the trained module.
        optimizers: the optimizers of the module.
        state: the state of the run, such as its step.
        carried: the model state carried from step to step, if the objective carries state.
        files: files to copy into the checkpoint if they exist: spec, tokenizer and settings.
        keep: the number of checkpoints to keep.

    Returns:
        The folder of the new checkpoint.

    Raises:
        CheckpointError: the disk is full or not writable. Earlier checkpoints are not affected.
    """
    saved = Checkpoints(Path(folder), SINGLE_PROCESS, carried=carried, files=files, keep=keep)
    saved.save(model, optimizers, state)
    return saved.path(state)


def find_checkpoint_to_resume(
    folder: Path, warn: Callable[[str], None], *, verify: bool = True
) -> Path:
    """Return the newest valid checkpoint in a folder of checkpoints.

    `warn` is called with a message for every newer checkpoint that is corrupt. If `verify` is
    false, the newest checkpoint is returned without checking it. Raises CheckpointError if there is
    no valid checkpoint.
    """
    checkpoint = find_last_good_checkpoint(
        checkpoints(folder), lambda one: verify_checkpoint(one) if verify else None, warn
    )
    if checkpoint is None:
        raise _make_resume_error(folder)
    return checkpoint


def _make_resume_error(folder: Path) -> CheckpointError:
    """Return the error that a folder of checkpoints contains no valid checkpoint."""
    damaged = any(checkpoints(folder))
    problem = "all of its checkpoints are damaged" if damaged else "it has no checkpoint yet"
    return CheckpointError(
        f"{folder.parent} cannot be resumed: {problem}. Start again with --overwrite, which "
        "replaces the run, or choose another --out."
    )


def verify_checkpoint(checkpoint: Path, parallel: Parallel = SINGLE_PROCESS) -> str | None:
    """Verify the checksums of a checkpoint's files.

    If there are several processes, all must call this function, and each reads some of the files.
    Returns a description of the first problem, or None if the checkpoint is valid.
    """
    required, problems = (WEIGHT_FILES, OPTIMIZER_FILES, STATE), list[str]()
    digests: list[tuple[str, str]] = []
    if parallel.is_main:
        try:
            digests = [*read_checksums(checkpoint, ["*"], required).items()]
        except CheckpointError as error:
            problems = [str(error)]
    digests = parallel.gather_results(digests)
    # Neighbours have the same size, so that every process reads about as many bytes.
    in_turn = [one for rank in range(parallel.size) for one in digests[rank :: parallel.size]]

    def verify(own: Sequence[tuple[str, str]]) -> list[str]:
        """Return the first problem of some files, in a list."""
        problem = find_damaged_file(checkpoint, dict(own))
        return [] if problem is None else [problem]

    problems = parallel.gather_results(problems) + parallel.map(verify, in_turn)
    return problems[0] if problems else None


def restore(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizers: Optimizers,
    warn: Callable[[str], None] = warnings.warn,
    *,
    carried: CarriedState | None = None,
    verify: bool = True,
) -> TrainState:
    """Load a checkpoint into a model and its optimizers. Returns the state of the run.

    Args:
        path: a checkpoint, or a folder of checkpoints. In a folder, the newest valid checkpoint is
            loaded.
        model: the module that receives the weights.
        optimizers: the optimizers that receive the optimizer state.
        warn: called with a message for every newer checkpoint in the folder that is corrupt.
        carried: receives the model state carried from step to step, if the objective carries state.
        verify: whether to verify the checksums of the files.

    Raises:
        CheckpointError: there is no checkpoint, or it is corrupt or belongs to another format
            version or another model.
    """
    checkpoint = Path(path)
    if not (checkpoint / CHECKSUMS).exists():
        checkpoint = find_checkpoint_to_resume(checkpoint, warn, verify=verify)
    elif verify and (problem := verify_checkpoint(checkpoint)):
        raise CheckpointError(f"{checkpoint}: {problem}. Take the checkpoint before it.")
    state = read_state(checkpoint)
    try:
        model.load_state_dict(read_shards(checkpoint, WEIGHT_FILES))
        load_state_tensors(optimizers, model, read_shards(checkpoint, OPTIMIZER_FILES))
        if carried is not None:
            carried.restore(read_safetensors(checkpoint / CARRIED))
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{checkpoint}: it belongs to another model: {error}") from None
    return state


class Checkpoints:
    """Saves and restores the checkpoints of a run.

    If there are several processes, each writes its shards. The first process then writes the other
    files and renames the folder, in the background.

    Args:
        folder: the folder of all checkpoints.
        parallel: the processes of the run.
        carried: the model state carried from step to step, if the objective carries state.
        files: files to copy into every checkpoint if they exist.
        keep: the number of checkpoints to keep.
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
        self._written: set[Path] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Any] | None = None

    def path(self, state: TrainState) -> Path:
        """Return the folder of the checkpoint for the step of `state`."""
        return self.folder / f"step-{state.step:08}"

    def save(self, model: nn.Module, optimizers: Optimizers, state: TrainState) -> None:
        """Save a checkpoint of the current weights, optimizer state and run state.

        All processes must call this method. If there are several processes, it first waits until
        the previous checkpoint has been written, and raises CheckpointError if that failed.

        Raises:
            CheckpointError: the disk is full or not writable. Earlier checkpoints are not affected.
        """
        carried = None if self.carried is None else self.carried.gather_tensors(self.parallel)
        if self.parallel.size == 1:
            with self._create_checkpoint(state, carried) as partial:
                write_safetensors(partial / WEIGHTS, model.state_dict())
                write_safetensors(partial / OPTIMIZER, get_state_tensors(optimizers, model))
            return
        self.wait()
        self.parallel.barrier()
        parts = _parts_folder(self.path(state))
        weights, moments = model.state_dict(), get_state_tensors(optimizers, model)
        numbers = dict.fromkeys(weights, _WEIGHTS_NUMBER)
        numbers |= dict.fromkeys(moments, _OPTIMIZER_NUMBER)
        writer = HuggingFaceStorageWriter(str(parts), numbers, save_distributed=True)
        writer.fs = hashes = _HashingFileSystem()
        write = _save_without_copy if _is_on_cpu(model) else async_save
        written = write(
            {**weights, **moments},
            storage_writer=writer,
            process_group=self.parallel.checkpoint_group,
        )
        assert isinstance(written, Future)
        state = copy.deepcopy(state)  # training updates the original
        self._pending = self._thread.submit(
            self._finish_checkpoint, written, parts, hashes.digests, state, carried
        )

    def wait(self) -> None:
        """Wait until the pending checkpoint has been written. Raises CheckpointError on failure."""
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
        """Load the newest valid checkpoint. Returns the state of the run.

        Each process reads only its own shards of the weights and the optimizer state.

        Args:
            model: the module that receives the weights.
            optimizers: the optimizers that receive the optimizer state.
            warn: called with a message for every newer checkpoint that is corrupt.
            verify: whether to verify the checksums of the files.

        Raises:
            CheckpointError: there is no valid checkpoint, or it belongs to another format version
                or another model.
        """
        if self.parallel.size == 1:
            return restore(
                self.folder, model, optimizers, warn, carried=self.carried, verify=verify
            )
        checkpoint = self._find_newest(warn, verify=verify)
        state, tensors = read_state(checkpoint), model.state_dict()
        try:
            moments = _allocate_optimizer_state(checkpoint, model)
            tensors |= moments
            reader = HuggingFaceStorageReader(str(checkpoint))
            load(tensors, storage_reader=reader, process_group=self.parallel.checkpoint_group)
            load_state_tensors(optimizers, model, moments)
            if self.carried is not None:
                self.carried.restore(read_safetensors(checkpoint / CARRIED), self.parallel)
        except SafetensorError as error:
            raise CheckpointError(
                f"{checkpoint}: {OPTIMIZER_FILES} cannot be read: {error}"
            ) from None
        except (KeyError, RuntimeError, ValueError, CheckpointException) as error:
            raise CheckpointError(f"{checkpoint}: it belongs to another model: {error}") from None
        return state

    def _find_newest(self, warn: Callable[[str], None], *, verify: bool) -> Path:
        """Return the newest valid checkpoint, the same on every process.

        `warn` is called on the main process, which alone reads the names of the checkpoints: the
        other machines may see an older state of the folder.
        """
        parallel = self.parallel
        names = [one.name for one in checkpoints(self.folder)] if parallel.is_main else []
        newest_first = [self.folder / name for name in parallel.gather_results(names)]
        newest = find_last_good_checkpoint(
            newest_first,
            lambda one: verify_checkpoint(one, parallel) if verify else None,
            warn if parallel.is_main else lambda _: None,
        )
        if newest is None and parallel.is_main:
            raise _make_resume_error(self.folder)
        parallel.barrier()  # an error on the other processes if the main process has ended
        assert newest is not None
        return newest

    def save_weights(self, folder: Path, model: nn.Module) -> None:
        """Write the weights of a model to a new folder, atomically, and wait until it is complete.

        All processes must call this method. If there are several, each writes its shards.

        Raises:
            CheckpointError: the disk is full or not writable.
        """
        parts, is_single = _parts_folder(folder), self.parallel.size == 1
        try:
            if not is_single:
                self.wait()  # both use `checkpoint_group`
                weights = model.state_dict()
                numbers = dict.fromkeys(weights, _WEIGHTS_NUMBER)
                save(
                    weights,
                    storage_writer=HuggingFaceStorageWriter(
                        str(parts), numbers, save_distributed=True
                    ),
                    process_group=self.parallel.checkpoint_group,
                )
            if self.parallel.is_main:
                folder.parent.mkdir(parents=True, exist_ok=True)
                with replace_folder(folder) as partial:
                    if is_single:
                        write_safetensors(partial / WEIGHTS, model.state_dict())
                    for file in parts.glob("shard-*"):
                        os.replace(file, partial / _get_shard_name(file.name))
        except (CheckpointException, OSError, SafetensorError) as error:
            raise CheckpointError(_format_save_error(error, folder)) from error
        finally:
            if self.parallel.is_main:
                shutil.rmtree(parts, ignore_errors=True)
        self.parallel.barrier()

    def load_weights(self, folder: Path, model: nn.Module) -> None:
        """Load the weights in a folder into a model. All processes must call this method.

        The folder is a checkpoint, or one that `save_weights` wrote, with any number of processes.
        """
        if self.parallel.size == 1:
            model.load_state_dict(read_shards(folder, WEIGHT_FILES))
        else:
            reader, group = HuggingFaceStorageReader(str(folder)), self.parallel.checkpoint_group
            load(model.state_dict(), storage_reader=reader, process_group=group)

    @contextmanager
    def _create_checkpoint(
        self,
        state: TrainState,
        carried: Mapping[str, Tensor] | None,
        digests: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[Path]:
        """Context manager that creates a checkpoint.

        Yields a temporary folder, into which the block writes the weights and the optimizer state.
        When the block ends, the other files are added, the folder gets its final name, and old
        checkpoints are deleted. `digests` contains the SHA-256 digests that are known already, by
        file name. Raises CheckpointError if the disk is full or not writable.
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
                write_checksums(partial, sorted(path.name for path in partial.iterdir()), digests)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(_format_save_error(error, final)) from error
        self._written.add(final)
        _delete_old_checkpoints(self.folder, self._written, self.keep)

    def _finish_checkpoint(
        self,
        pending_write: Future[Any],
        shard_folder: Path,
        own_digests: Mapping[str, str],
        state: TrainState,
        carried: Mapping[str, Tensor] | None,
    ) -> None:
        """Wait until all processes have written their shards, then create the checkpoint on rank 0.

        DCP's own collectives on `checkpoint_group` have ended when the shards are written, and the
        next `save` waits for this method. The digests are therefore gathered on the same group.

        Args:
            pending_write: the write of the shards that DCP has started.
            shard_folder: the folder of the shards, which is deleted at the end.
            own_digests: the SHA-256 digests of the files of this process, by DCP's file names.
            state: the state of the run.
            carried: the model state carried from step to step, by tensor name.
        """
        try:
            pending_write.result()
            parts: list[Any] | None = [None] * self.parallel.size if self.parallel.is_main else None
            dist.gather_object(own_digests, parts, group=self.parallel.checkpoint_group)
            if parts is not None:
                shards = {name: digest for part in parts for name, digest in part.items()}
                digests = {_get_shard_name(name): digest for name, digest in shards.items()}
                with self._create_checkpoint(state, carried, digests) as partial:
                    for name in shards:
                        os.replace(shard_folder / name, partial / _get_shard_name(name))
                    if not any(partial.glob(OPTIMIZER_FILES)):  # SGD without momentum has no state
                        write_safetensors(partial / OPTIMIZER, {})
        except (CheckpointException, OSError) as error:
            raise CheckpointError(_format_save_error(error, self.path(state))) from error
        finally:
            if self.parallel.is_main:
                shutil.rmtree(shard_folder, ignore_errors=True)


@dataclass
class SaveCheckpoints(Callback):
    """A callback that saves the checkpoints of a run. Every process has this callback.

    Args:
        checkpoints: the checkpoints of the run.
        model: the part of the model that this process trains.
        optimizers: the optimizers of the model.
        state: the state of the run, which training updates in place.
        log: the progress line.
        waits: whether to wait until a checkpoint has been written, because later callbacks read it.
    """

    checkpoints: Checkpoints
    model: nn.Module
    optimizers: Optimizers
    state: TrainState
    log: ProgressLine
    waits: bool

    def on_save(self, folder: Path) -> None:
        """Save a checkpoint to `folder`. Several processes complete it in the background."""
        self.log.update(translated("progress.saving"))
        self.checkpoints.save(self.model, self.optimizers, self.state)
        assert folder == self.checkpoints.path(self.state)
        if self.waits:
            self.checkpoints.wait()

    def on_end(self, error: BaseException | None) -> None:
        """Wait until the last checkpoint has been written."""
        self.checkpoints.wait()


class _HashingFileSystem(FileSystem):
    """The file system for DCP, which also computes the SHA-256 digests of the written files."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        """The digests by file name."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Yield a stream that writes to a new file, and store the digest of the file at the end."""
        assert mode == "wb"
        file = HashedFile(path)
        with io.BufferedWriter(file) as stream:
            yield stream
        self.digests[os.path.basename(path)] = file.sha256()


def _parts_folder(folder: Path) -> Path:
    """Return the temporary folder of the shards of `folder`, which a later start deletes."""
    return folder.with_name(f".{folder.name}.tmp")


def _get_shard_name(name: str) -> str:
    """Return the name that DCP's file of shards has in a checkpoint.

    >>> _get_shard_name("shard-00003-model-00002-of-00002.safetensors")
    'optimizer-00003.safetensors'
    """
    _, process, _, number, *_ = name.split("-")
    kind = "model" if int(number) == _WEIGHTS_NUMBER else "optimizer"
    return f"{kind}-{process}.safetensors"


def _is_on_cpu(model: nn.Module) -> bool:
    """Return whether the weights of a model are in host memory."""
    return next(model.parameters()).device.type == "cpu"


def _save_without_copy(
    tensors: Mapping[str, Tensor],
    *,
    storage_writer: HuggingFaceStorageWriter,
    process_group: dist.ProcessGroup,
) -> Future[Any]:
    """Write tensors like `async_save`, but before the call returns, so that no copy is needed.

    Returns a future that contains the exception if the write failed.
    """
    written = Future[Any]()
    try:
        save(dict(tensors), storage_writer=storage_writer, process_group=process_group)
        written.set_result(None)
    except (CheckpointException, OSError) as error:
        written.set_exception(error)
    return written


def read_state(checkpoint: Path) -> TrainState:
    """Read the state of a run, such as its step, from a checkpoint.

    Raises CheckpointError if the checkpoint has another format version or its `state.json` is
    invalid.
    """
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


def _delete_old_checkpoints(folder: Path, written: Collection[Path], keep: int) -> None:
    """Delete all checkpoints in a folder that are older than the last `keep` valid ones.

    Corrupt checkpoints do not count toward `keep`. The checkpoints in `written` count as valid and
    are not read, since this process has written them.
    """
    good = 0
    for checkpoint in checkpoints(folder):
        if good >= keep:
            shutil.rmtree(checkpoint, ignore_errors=True)
        elif checkpoint in written or verify_checkpoint(checkpoint) is None:
            good += 1


def _format_save_error(error: BaseException, target: Path) -> str:
    """Return the message for an error that occurred while the checkpoint `target` was written."""
    if is_disk_full(error):
        return (
            f"{target}: not saved, the disk is full. What was saved before is untouched: "
            "free some space and continue with --resume."
        )
    return f"{target}: not saved: {error}. What was saved before is untouched."


def _allocate_optimizer_state(checkpoint: Path, model: nn.Module) -> dict[str, Tensor]:
    """Allocate tensors into which the optimizer state of a checkpoint can be loaded, by name.

    Each tensor is sharded like the parameter that it belongs to.
    """
    parameters, moments = dict(model.named_parameters()), {}
    for file in checkpoint.glob(OPTIMIZER_FILES):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118  # no dict
                parameter = parameters[name.rpartition("/")[0]].detach()
                # Step counts are scalars, but vectors of one element in consolidated checkpoints.
                shape = stored.get_slice(name).get_shape()
                is_step = name.endswith("/step")  # whatever the shape of the parameter
                moments[name] = torch.zeros(shape) if is_step else torch.zeros_like(parameter)
    return moments
