"""Whatever fails while a run is saved, and whenever: its last good checkpoint is there."""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from failing_disk import FailingDisk, copy_after_power_failure
from run_settings import assert_equal_runs, quiet, settings
from small_models import small_model

from trivium import LanguageModel, load
from trivium.errors import CheckpointError, TriviumError
from trivium.train import checkpoint
from trivium.train.checkpoint import Checkpoints, restore
from trivium.train.distributed import SINGLE_PROCESS, Parallel
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import Interrupted, TrainState
from trivium.workflows.training import pretrain

SAVING = ("files.py", "model_folder.py", "checkpoint.py", "settings.py")


class Run:
    """A linear layer that is trained and saved step by step."""

    def __init__(self, folder: Path, parallel: Parallel = SINGLE_PROCESS) -> None:
        self.folder, self.parallel = folder, parallel
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.spec = folder / "spec.json"
        self.spec.write_text("{}")
        self.step = 0

    def train(self) -> None:
        self.model(torch.ones(3)).sum().backward()
        self.optimizer.step()
        self.step += 1

    def save(self) -> None:
        folder, state = self.folder / "checkpoints", TrainState(self.step)
        saved = Checkpoints(folder, self.parallel, files=[self.spec], keep=1)
        saved.save(self.model, [self.optimizer], state)
        saved.wait()


def restored_step(folder: Path) -> int:
    """The step of the last good checkpoint; its tensors belong to it."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    state = restore(folder / "checkpoints", model, [optimizer], pytest.fail)
    assert optimizer.state[model.weight]["step"] == state.step
    return state.step


def is_same(one: LanguageModel, other: LanguageModel) -> bool:
    return torch.equal(one.logits([[5, 6, 7]]), other.logits([[5, 6, 7]]))


def error_of(write: Callable[[], object]) -> str:
    """The message of a full disk; "" without an error."""
    try:
        write()
    except TriviumError as error:
        return re.search("the disk is full|No space left", str(error))[0]  # type: ignore[index]
    return ""


def each_operation(save: Callable[[], object]) -> Iterator[tuple[str, bool]]:
    """(operation, whether `save` raised), failing every operation of it in turn."""
    for number in itertools.count(1):
        with FailingDisk(failing=number).mounted() as disk:
            message = error_of(save)
        if len(disk.operations) < number:
            return
        yield disk.operations[number - 1], message != ""


@pytest.fixture
def first_of_two(monkeypatch):
    """The first of two processes, whose shards are whole tensors; the other one has no shards."""

    def gather_object(own: object, parts: list[object], **_: object) -> None:
        parts[:] = [own, {}]

    monkeypatch.setattr(torch.distributed, "gather_object", gather_object)
    monkeypatch.setattr(Parallel, "all_reduce_max", lambda self, *values: [*values])
    return Parallel(size=2)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("is_sharded", [False, True])
def test_every_operation_of_saving_a_checkpoint_may_fail(is_sharded, first_of_two, tmp_path):
    run = Run(tmp_path, first_of_two if is_sharded else SINGLE_PROCESS)
    run.train()
    run.save()
    operations = []

    def save_next():
        run.train()
        run.save()

    for operation, raised in each_operation(save_next):
        operations.append(operation)
        assert restored_step(tmp_path) in ((run.step - 1, run.step) if raised else (run.step,))
        if operation not in ("unlink", "rmdir"):
            assert not list(tmp_path.rglob(".*"))
        run.save()
        assert restored_step(tmp_path) == run.step
    [checkpoint] = (tmp_path / "checkpoints").glob("step-*")
    names = {"model-00001", "optimizer-00001"} if is_sharded else {"model", "optimizer"}
    assert {file.stem for file in checkpoint.glob("*.safetensors")} == names
    assert {"open", "write", "fsync", "replace", "mkdir", "unlink"} <= {*operations}


@pytest.mark.parametrize("on_cpu", [False, True])
def test_parts_that_several_processes_could_not_write_are_removed(on_cpu, tmp_path, monkeypatch):
    """Else they would fill the disk that has to be freed; `RunFolder` removes those of a kill."""

    written, full = Future[None](), OSError(errno.ENOSPC, "No space left on device")

    def fail(tensors: object, *, storage_writer: Any, **_: object) -> Future[None]:
        parts = Path(storage_writer.path)
        assert parts.match(".*.tmp")
        parts.mkdir(parents=True)
        (parts / "model.safetensors").write_bytes(b"a part")
        if on_cpu:  # there the call itself writes, without a copy
            raise full
        return written

    monkeypatch.setattr(checkpoint, "save" if on_cpu else "async_save", fail)
    monkeypatch.setattr(checkpoint, "_is_on_cpu", lambda _: on_cpu)
    monkeypatch.setattr(Parallel, "all_reduce_max", lambda self, *values: [*values])
    model = torch.nn.Linear(3, 2)
    saving = checkpoint.Checkpoints(tmp_path, Parallel(size=2))
    state = TrainState(5)
    saving.save(model, [], state)
    state.step = 6  # training goes on meanwhile
    written.set_exception(full)
    with pytest.raises(CheckpointError, match=r"/step-00000005: not saved, the disk is full"):
        saving.wait()
    assert not [*tmp_path.iterdir()]


def test_every_operation_of_saving_a_model_may_fail(tmp_path):
    folder = tmp_path / "model"
    old, new = (LanguageModel(m.spec, m) for m in (small_model("lstm", seed=n) for n in (1, 2)))
    old.save(folder)
    for operation, raised in each_operation(lambda: new.save(folder, overwrite=True)):
        if raised and not is_same(load(folder), new):
            assert is_same(load(folder), old)
        else:
            assert is_same(load(folder), new), operation
        old.save(folder, overwrite=True)


@contextlib.contextmanager
def before_each_line(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` before every line of the saving code."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(SAVING):
            return None
        if event == "line":
            act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def each_line(save: Callable[[], object]) -> Iterator[int]:
    """Interrupt `save` at every line of the saving code in turn."""
    for number in itertools.count(1):
        lines = itertools.count(1)

        def interrupt(lines: Iterator[int] = lines, number: int = number) -> None:
            if next(lines) == number:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt), before_each_line(interrupt):
            save()
        if next(lines) <= number:
            return
        yield number


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
def test_saving_may_be_interrupted_at_every_line(tmp_path):
    run = Run(tmp_path)
    run.train()
    run.save()

    def save_next():
        run.train()
        run.save()

    for _ in each_line(save_next):
        assert restored_step(tmp_path) in (run.step - 1, run.step)
        run.save()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_saving_a_model_may_be_interrupted_at_every_line(tmp_path):
    folder = tmp_path / "model"
    old, new = (LanguageModel(m.spec, m) for m in (small_model("lstm", seed=n) for n in (1, 2)))
    old.save(folder)
    for _ in each_line(lambda: new.save(folder, overwrite=True)):
        assert is_same(load(folder), new) or is_same(load(folder), old)
        old.save(folder, overwrite=True)


CHANGES = settings(steps=2, save_every=1, eval_every=2, log_every=1)


@pytest.mark.parametrize("every", [45, pytest.param(4, marks=pytest.mark.slow)])
def test_the_power_may_fail_before_every_operation_of_a_run(every, text, tmp_path):
    run, operations, copies = RunFolder(tmp_path / "run"), 0, []

    def copy(operation):
        nonlocal operations
        operations += any(run.checkpoints.glob("step-*"))
        if operations and operations % every == 1 % every:
            copies.append(tmp_path / f"copy-{operations}")
            copy_after_power_failure(run.path, copies[-1], disk)

    disk = FailingDisk(before=copy)
    with disk.mounted():
        pretrain("bert-tiny", data=text, out=run.path, changes=CHANGES, console=quiet())
    assert len(copies) > 100 / every
    for folder in copies:
        with warnings.catch_warnings(action="ignore"):  # of what has not finished
            load(folder)
        assert_equal_runs(pretrain("", out=folder, resume=True, console=quiet()), run)


@pytest.mark.parametrize("every", [110, pytest.param(25, marks=pytest.mark.slow)])
def test_the_disk_may_be_full_at_every_operation_of_a_run(every, text, tmp_path):
    def start(out, resume=False):
        data, changes = ((), ()) if resume else (text, CHANGES)
        return pretrain(
            "bert-tiny", data=data, out=out, changes=changes, resume=resume, console=quiet()
        )

    whole = start(tmp_path / "whole")
    for number in itertools.count(1, every):
        run = RunFolder(tmp_path / f"{number}")
        with FailingDisk(failing=number).mounted() as disk:
            error_of(lambda out=run.path: start(out))
        if len(disk.operations) < number:
            break
        resume = run.recipe.is_file()
        assert_equal_runs(start(run.path, resume), whole)


def test_sigterm_at_every_line_of_saving_waits_for_the_checkpoint(text, tmp_path, monkeypatch):
    def start(out):
        changes = settings(steps=4, save_every=1, eval_every=4)
        return pretrain("bert-tiny", data=text, out=out, changes=changes, console=quiet())

    whole = start(tmp_path / "whole")

    saved = checkpoint.Checkpoints.save

    def save(*arguments):
        with before_each_line(lambda: signal.raise_signal(signal.SIGTERM)):
            saved(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "save", save)
        with pytest.raises(Interrupted, match=r"step \d is saved"):
            start(tmp_path / "run")
    run = pretrain("", out=tmp_path / "run", resume=True, console=quiet())
    assert_equal_runs(run, whole)
