"""Runs of several processes: `run_processes` starts this file by torchrun, which trains them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from run_settings import quiet, settings

from trivium.files import HashedFile
from trivium.objectives import preference
from trivium.objectives.classification import TextClassification
from trivium.plan import forecast
from trivium.train import trainer, whole_model
from trivium.train.run_folder import RunFolder
from trivium.workflows import training

SOURCE = Path(__file__).parents[2] / "src"


def run_processes(processes: int, jobs: list[dict[str, Any]], *options: str) -> None:
    """Train every run by so many processes; an error has what they printed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    launcher += ["--nproc-per-node", str(processes), __file__, json.dumps(jobs, default=str)]
    paths = [str(SOURCE), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    result = subprocess.run(launcher, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-8000:]


def train(jobs: list[dict[str, Any]]) -> None:
    """Call `pretrain` or `finetune` (the key "command") with each job's other keys."""
    for job in jobs:
        arguments = {"command": "pretrain", **job}
        killed = arguments.pop("kill", None)
        if (folder := arguments.pop("note_answers", None)) is not None:
            note_sizes(TextClassification, "predict", Path(folder))
        if (folder := arguments.pop("note_references", None)) is not None:
            note_sizes(preference, "compute_pair_log_probabilities", Path(folder))
        if not arguments.pop("keeps_blocks", True):  # as in processes with little memory
            whole_model._KEPT_FRACTION = 0.0
        if (step := arguments.pop("slow_disk", None)) is not None:
            slow_the_disk(step, is_killed=os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
        if killed is not None and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            kill_in_step(*killed)
        getattr(training, arguments.pop("command"))(**arguments, console=quiet())


def kill_in_step(rank: str, step: int) -> None:
    """Let the process of this rank be killed before the gradients of a step."""
    original = trainer.forward_backward

    def killed(of: Any, batch: Any, number: int) -> Any:
        if number == step and os.environ["RANK"] == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(of, batch, number)

    trainer.forward_backward = killed


def slow_the_disk(step: int, *, is_killed: bool) -> None:
    """Let a disk take little at a time, slowly.

    If `is_killed`, the second process is killed halfway through its part of the checkpoint `step`.
    """
    write = HashedFile.write

    def write_slowly(file: HashedFile, data: Any) -> int:
        is_last = is_killed and f"step-{step:08}" in str(file.name) and os.environ["RANK"] == "1"
        if is_last and file.tell():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        return write(file, memoryview(data)[: 1 << 16])

    HashedFile.write = write_slowly  # type: ignore[method-assign]


def note_sizes(owner: Any, name: str, folder: Path) -> None:
    """Let every process write how many examples a function gets, a line at each call."""
    original = getattr(owner, name)

    def noted(*arguments: Any) -> Any:
        # The examples are a sequence, or an array of their indices.
        (examples,) = (each for each in arguments if isinstance(each, Sequence | np.ndarray))
        with (folder / os.environ.get("RANK", "0")).open("a") as file:
            file.write(f"{len(examples)}\n")
        return original(*arguments)

    setattr(owner, name, noted)


def curve(folder: str | os.PathLike[str]) -> dict[tuple[int, str], float]:
    """Every loss and metric of a run by its step and name."""
    return {
        (record["step"], name): value
        for record in RunFolder(folder).read_metrics()
        for name, value in record.items()
        if name.startswith(("train_", "valid_"))
    }


def small(dropout: float = 0.1, **parallel: Any) -> dict[str, Any]:
    """Changes for a run of six small steps, each of three micro-batches."""
    changes = settings(steps=6, log_every=1, eval_every=4, save_every=2)
    # A low rate, since every step multiplies the difference that rounding makes.
    optimizer = {"kind": "adamw", "lr": 3e-4}
    model = {"dropout": dropout}
    return {**changes, "model": model, "optimizer": optimizer, "parallel": parallel}


if __name__ == "__main__":
    forecast._MIN_RUN_SECONDS = forecast._MIN_TIMED_SECONDS = 0.0  # every run has a forecast
    train(json.loads(sys.argv[-1]))
