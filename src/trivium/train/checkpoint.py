"""Checkpoints: written aside, synced, renamed; verified by checksum; nothing is unpickled.

A checkpoint is a folder `step-{n:08}` with `model.safetensors`, `optimizer.safetensors`,
`state.json`, `spec.json`, `tokenizer.json` and, written last, `checksums.json` (SHA-256 of every
other file). It appears under its name only when all of it is on the disk.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trivium.errors import CheckpointError
from trivium.optim.optimizers import state_tensors

FORMAT_VERSION = 2
_CHECKSUMS = "checksums.json"


@dataclass
class TrainState:
    """What resuming needs besides tensors: integers, and sums that a log line is made of.

    `began` is what the clock showed at the first step; `window_*` is what has been added up since
    the last log line, for every term of the loss, so that a resumed run writes the line an
    uninterrupted one writes. `best` is the score of the best evaluation so far, where one is kept,
    `best_step` its step, and `declines` counts the evaluations since.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    window_loss: list[float] = field(default_factory=list)
    window_count: list[int] = field(default_factory=list)
    began: float | None = None
    best: float | None = None
    best_step: int = 0
    declines: int = 0


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizers: list[Any],
    state: TrainState,
    *,
    spec: dict[str, Any],
    tokenizer_file: Path | None,
    keep: int,
    settings_files: Sequence[Path] = (),
) -> Path:
    """Write `folder/step-{n:08}` whole or not at all, then drop all but the last `keep`.

    Of `settings_files`, which say how the model is used, those that exist are copied into it.

    Raises CheckpointError where the disk is full or not writable; earlier checkpoints stay.
    """
    final = folder / f"step-{state.step:08}"
    partial = folder / f".step-{state.step:08}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        weights = {
            name: weight.detach().contiguous() for name, weight in model.state_dict().items()
        }
        save_file(weights, partial / "model.safetensors")
        moments = {
            name: value.detach().contiguous()
            for name, value in state_tensors(optimizers, model).items()
        }
        save_file(moments, partial / "optimizer.safetensors")
        _write_json(partial / "state.json", {"format": FORMAT_VERSION, **asdict(state)})
        _write_json(partial / "spec.json", spec)
        if tokenizer_file is not None:
            shutil.copyfile(tokenizer_file, partial / "tokenizer.json")
        for file in settings_files:
            if file.is_file():
                shutil.copyfile(file, partial / file.name)
        _write_json(
            partial / _CHECKSUMS, {path.name: _sha256(path) for path in sorted(partial.iterdir())}
        )
        for path in partial.iterdir():
            sync(path)
        sync(partial)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(_why_not_saved(error, final)) from error
    for old in list(checkpoints(folder))[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(folder: Path) -> Iterator[Path]:
    """The checkpoints in a folder, newest first, good or not."""
    if folder.is_dir():
        yield from sorted(folder.glob("step-*"), reverse=True)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None: every one is read and compared."""
    try:
        expected: dict[str, str] = json.loads((checkpoint / _CHECKSUMS).read_text())
    except (OSError, ValueError):
        return f"{_CHECKSUMS} is missing or damaged"
    for name, digest in expected.items():
        try:
            if _sha256(checkpoint / name) != digest:
                return f"{name} does not match its checksum"
        except OSError:
            return f"{name} is missing or cannot be read"
    return None


def last_good_checkpoint(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; every damaged one on the way there is warned of."""
    for checkpoint in checkpoints(folder):
        problem = damage(checkpoint)
        if problem is None:
            return checkpoint
        warn(f"{checkpoint}: {problem}; going back to the checkpoint before it.")
    return None


def load_state(checkpoint: Path) -> TrainState:
    """The state of a verified checkpoint. Raises CheckpointError for another format version."""
    data = json.loads((checkpoint / "state.json").read_text())
    version = data.pop("format", None)
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{checkpoint}: checkpoint format {version}, but this version reads "
            f"{FORMAT_VERSION}; resume with the version that wrote it."
        )
    return TrainState(**data)


def load_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises CheckpointError where it cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}.") from None


def save_weights(file: Path, model: nn.Module) -> None:
    """The weights alone, written aside and renamed."""
    save_tensors(file, model.state_dict())


def save_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Named tensors, written aside and renamed.

    Raises CheckpointError where the disk is full or not writable.
    """
    partial = file.with_name(f".{file.name}.partial")
    try:
        save_file({name: w.detach().contiguous() for name, w in tensors.items()}, partial)
        sync(partial)
        os.replace(partial, file)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(_why_not_saved(error, file)) from error


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _why_not_saved(error: Exception, target: Path) -> str:
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or "No space left" in str(error) or "os error 28" in str(error):
        return (
            f"{target}: not saved, the disk is full. What was saved before is untouched: "
            "free some space and go on with --resume."
        )
    return f"{target}: not saved: {error}. What was saved before is untouched."
