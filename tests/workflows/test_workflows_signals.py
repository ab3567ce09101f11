"""Real processes that get a signal before their first step, and what is left of them."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from killed_runs import _CONTEXT
from run_settings import quiet, settings

from trivium.cli import app
from trivium.errors import RecipeError
from trivium.workflows.training import pretrain

# The moment at which the process waits for its signal: a function, and its module.
MOMENTS = {
    "reading": ("trivium.workflows.training", "load_corpus"),
    "tokenizer": ("trivium.workflows.corpus", "_train_tokenizer"),
    "encoding": ("trivium.workflows.corpus", "prepare"),
    "model": ("trivium.workflows.training", "set_up_model"),
    "memory": ("trivium.workflows.training_run", "fit_memory"),
    "first-step": ("trivium.train.trainer", "forward_backward"),
}
# `first-step`: the process is in its loop, but is killed before a checkpoint.


def run_command(moment: str, errors: Path, waiting: Any, is_slow: bool, command: list[str]) -> None:
    """Run `trivium`, which tells `waiting` at the moment, and waits there for a signal."""
    module, name = MOMENTS[moment]

    def wait(*_: Any, **__: Any) -> None:
        waiting.set()
        for _ in range(1200):  # a signal that comes just before a sleep does not shorten it
            time.sleep(0.05)

    setattr(importlib.import_module(module), name, wait)
    if is_slow:
        remove = shutil.rmtree

        def slowly(*arguments: Any, **options: Any) -> None:
            (errors.parent / "cleaning").touch()
            time.sleep(0.5)
            remove(*arguments, **options)

        shutil.rmtree = slowly
    with errors.open("w") as sys.stderr:
        app(command)


def signalled(moment: str, number: int, out: Path, text: Path, *options: str, times: int = 1):
    """Exit code and standard error of `trivium pretrain`, which gets a signal at a moment."""
    sets = ["--set=train.steps=2", "--set=tokenizer.vocab_size=300", "--set=data.length=32"]
    command = ["pretrain", "bert-tiny", "--data", str(text), "--out", str(out), *sets, *options]
    waiting, errors = _CONTEXT.Event(), out.parent.parent / "errors.txt"
    process = _CONTEXT.Process(
        target=run_command, args=(moment, errors, waiting, times > 1, command)
    )
    process.start()
    try:
        assert waiting.wait(60), errors.read_text()
        os.kill(process.pid, number)
        for _ in range(1, times):
            while not (errors.parent / "cleaning").exists():
                time.sleep(0.05)
            time.sleep(0.1)
            os.kill(process.pid, number)
        process.join(60)
    finally:
        process.kill()
    return process.exitcode, errors.read_text()


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """A finished run, to be copied."""
    out = tmp_path_factory.mktemp("finished") / "run"
    return pretrain("bert-tiny", data=text, out=out, changes=settings(steps=2), console=quiet())


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", [name for name in MOMENTS if name != "first-step"])
def test_a_signal_before_the_first_step_is_answered(
    moment, number, overwrite, finished, text, tmp_path
):
    out = tmp_path / "in" / "run"
    out.parent.mkdir()
    if overwrite:
        shutil.copytree(finished.path, out)
    options = ["--overwrite"] if overwrite else []
    code, errors = signalled(moment, number, out, text, *options)
    assert code == 130, errors
    assert "Traceback" not in errors
    left = [path.name for path in out.parent.iterdir()]
    if overwrite:
        assert f"nothing is kept; the run that was in {out} is still there." in errors
        assert left == ["run"]
        assert (out / "model.safetensors").read_bytes() == finished.weights.read_bytes()
        assert (out / "metrics.jsonl").read_bytes() == finished.metrics_file.read_bytes()
    elif moment in ("model", "memory"):
        assert "what was prepared for the first step is kept. To resume:" in errors
        assert (out / "shards" / "manifest.json").is_file()
    else:
        assert "interrupted before the first step, nothing is kept." in errors
        assert left == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_a_killed_start_was_to_replace_comes_back(moment, finished, text, tmp_path):
    out = tmp_path / "in" / "run"
    out.parent.mkdir()
    shutil.copytree(finished.path, out)
    code, _ = signalled(moment, signal.SIGKILL, out, text, "--overwrite")
    assert code == -signal.SIGKILL
    assert sorted(os.listdir(out.parent)) == [".run.replaced", "run"]
    changes = settings(steps=2)
    for options in ({}, {"resume": True})[: 1 + (moment != "first-step")]:
        copy = tmp_path / f"copy-{len(options)}"
        copy.mkdir()
        for name in ("run", ".run.replaced"):
            shutil.copytree(out.parent / name, copy / name)
        with pytest.raises(
            RecipeError, match=r"killed before its first checkpoint\. The run is back"
        ):
            pretrain(
                "bert-tiny", data=text, out=copy / "run", changes=() if options else changes,
                console=quiet(), **options,
            )  # fmt: skip
        assert os.listdir(copy) == ["run"]
        assert (copy / "run" / "model.safetensors").read_bytes() == finished.weights.read_bytes()
        pretrain("", out=copy / "run", resume=True, changes=["train.steps=3"], console=quiet())
    run = pretrain(
        "bert-tiny", data=text, out=out, changes=changes, overwrite=True, console=quiet()
    )
    assert os.listdir(out.parent) == ["run"]
    assert run.weights.is_file()


def test_a_killed_run_without_a_checkpoint_goes_on_and_then_replaces_the_old_one(
    finished, text, tmp_path
):
    out = tmp_path / "in" / "run"
    out.parent.mkdir()
    shutil.copytree(finished.path, out)
    signalled("first-step", signal.SIGKILL, out, text, "--overwrite")
    run = pretrain("", out=out, resume=True, console=quiet())
    assert run.read_metrics()[-1]["step"] == 2
    assert os.listdir(out.parent) == ["run"]


def test_a_start_that_fails_in_its_first_steps_leaves_the_old_run(
    finished, text, tmp_path, monkeypatch
):
    out = tmp_path / "in" / "run"
    out.parent.mkdir()
    shutil.copytree(finished.path, out)
    monkeypatch.setattr("trivium.train.trainer.forward_backward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pretrain(
            "bert-tiny", data=text, out=out, changes=settings(steps=2), overwrite=True,
            console=quiet(),
        )  # fmt: skip
    assert os.listdir(out.parent) == ["run"]
    assert (out / "model.safetensors").read_bytes() == finished.weights.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_stop_the_cleaning(number, finished, text, tmp_path):
    """As from a process group and its supervisor."""
    out = tmp_path / "in" / "run"
    shutil.copytree(finished.path, out)
    code, errors = signalled("model", number, out, text, "--overwrite", times=3)
    assert code == 130, errors
    assert os.listdir(out.parent) == ["run"]
    assert (out / "model.safetensors").read_bytes() == finished.weights.read_bytes()
