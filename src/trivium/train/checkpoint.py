"""Checkpoints: complete or absent, verified by checksum; nothing is unpickled.

A checkpoint is a folder `step-{n:08}` with the files of a model folder, `optimizer.safetensors`,
`state.json` and `checksums.json` (SHA-256 of every other file). It gets its name only when all of
it is on the disk.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from trivium.errors import CheckpointError
from trivium.files import is_disk_full, read_json, replace_folder, write_json
from trivium.interop.tensor_files import read_safetensors, write_safetensors
from trivium.model_folder import (
    CHECKSUMS,
    WEIGHTS,
    checkpoints,
    find_damage,
    last_good_checkpoint,
    write_checksums,
)
from trivium.train.optimizers import Optimizers, load_state_tensors, state_tensors
from trivium.train.trainer import TrainState

FORMAT_VERSION = 6
OPTIMIZER, STATE = "optimizer.safetensors", "state.json"


def save_checkpoint(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizers: Optimizers,
    state: TrainState,
    *,
    files: Sequence[Path] = (),
    keep: int = 3,
) -> Path:
    """Write `folder/step-{n:08}` whole or not at all, then delete all but the last `keep` good.

    Of `files`, those that exist are copied into it: spec, tokenizer and settings of the run.

    Raises CheckpointError where the disk is full or not writable; earlier checkpoints stay.
    """
    with new_checkpoint(Path(folder), state, files=files, keep=keep) as partial:
        write_safetensors(partial / WEIGHTS, model.state_dict())
        write_safetensors(partial / OPTIMIZER, state_tensors(optimizers, model))
    return Path(folder) / f"step-{state.step:08}"


@contextmanager
def new_checkpoint(
    folder: Path, state: TrainState, *, files: Sequence[Path], keep: int
) -> Iterator[Path]:
    """A temporary folder to fill with tensors, which becomes the checkpoint when the block ends.

    Arguments and errors are those of `save_checkpoint`.
    """
    final = folder / f"step-{state.step:08}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replace_folder(final) as partial:
            yield partial
            write_json(partial / STATE, {"format": FORMAT_VERSION, **asdict(state)})
            for file in files:
                if file.is_file():
                    shutil.copyfile(file, partial / file.name)
            write_checksums(partial, sorted(path.name for path in partial.iterdir()))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(why_not_saved(error, final)) from error
    _prune(folder, final, keep)


def checkpoint_to_resume(folder: Path, warn: Callable[[str], None], *, verify: bool = True) -> Path:
    """The newest undamaged checkpoint; every damaged one on the way there is warned of.

    Without `verify` it is the newest. Raises CheckpointError where there is none.
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
    """What is wrong with a checkpoint's files, or None: every one is read and compared."""
    return find_damage(checkpoint, names=(), needed=(WEIGHTS, OPTIMIZER, STATE))


def restore(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizers: Optimizers,
    warn: Callable[[str], None] = warnings.warn,
    *,
    verify: bool = True,
) -> TrainState:
    """Load a checkpoint into a model and its optimizers, and return its state.

    `path` is a checkpoint, or a folder of them, of which the newest undamaged one is taken; `warn`
    is called for every damaged one on the way there. Without `verify` no file is compared with its
    checksum.

    Raises CheckpointError where there is none, it is damaged, of another format version, or of
    another model.
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
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{checkpoint}: it belongs to another model: {error}") from None
    return state


def read_state(checkpoint: Path) -> TrainState:
    """The state in a checkpoint. Raises CheckpointError where it has another format version."""
    data = read_json(checkpoint / STATE)
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


def average_weights(folder: Path, count: int) -> dict[str, Tensor]:
    """The mean of the weights of the last `count` good checkpoints (Vaswani et al. 2017, 6.1)."""
    total: dict[str, Tensor] = {}
    good = [path for path in checkpoints(folder) if damage(path) is None][:count]
    for checkpoint in good:
        for name, weight in read_safetensors(checkpoint / WEIGHTS).items():
            total[name] = total[name] + weight / len(good) if name in total else weight / len(good)
    return total


def _prune(folder: Path, newest: Path, keep: int) -> None:
    """Delete the checkpoints beyond the last `keep` good ones; damaged ones do not count."""
    good = 0
    for checkpoint in checkpoints(folder):
        if good >= keep:
            shutil.rmtree(checkpoint, ignore_errors=True)
        elif checkpoint == newest or damage(checkpoint) is None:
            good += 1


def why_not_saved(error: BaseException, target: Path) -> str:
    """The message for a checkpoint that could not be written."""
    if is_disk_full(error):
        return (
            f"{target}: not saved, the disk is full. What was saved before is untouched: "
            "free some space and continue with --resume."
        )
    return f"{target}: not saved: {error}. What was saved before is untouched."
