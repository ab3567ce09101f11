"""Callbacks of the user: the page about them, the order of calls, Weights & Biases."""

from __future__ import annotations

import importlib.machinery
import re
import sys
import types
from pathlib import Path

import pytest
from run_settings import quiet, settings

import trivium
from trivium.errors import MissingExtraError
from trivium.train.wandb_callback import WandbCallback
from trivium.workflows.training import pretrain

PAGE = Path(__file__).parents[2] / "docs" / "callbacks.md"


def test_the_example_of_the_page_runs(text, tmp_path, monkeypatch):
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    Path("samples").mkdir()
    Path("samples/english.txt").write_bytes(text.read_bytes())
    exec(example.replace("steps=40", "steps=4").replace("every=20", "every=2"), {})
    lines = Path("texts.txt").read_text("utf-8").splitlines()
    assert [int(line.split()[0]) for line in lines] == [2, 4]
    listed = re.findall(r"^\| `(\w+)\(", PAGE.read_text("utf-8"), re.M)
    assert listed == [name for name in vars(trivium.Callback) if name.startswith("on_")]


def test_every_method_is_called_in_order(text, tmp_path):
    calls: list[str] = []

    class Notes(trivium.Callback):
        pass

    for name in (name for name in vars(trivium.Callback) if name.startswith("on_")):
        setattr(Notes, name, lambda *_, name=name: calls.append(name.removeprefix("on_")))
    changes = settings(steps=4, log_every=2, eval_every=4, save_every=4)
    pretrain(
        "gpt2-tiny", data=text, out=tmp_path / "run", changes=changes, callbacks=[Notes()],
        console=quiet(),
    )  # fmt: skip
    steps = ["step", "step", "log", "step", "step", "log"]
    assert calls == ["start", *steps, "evaluate", "save", "end"]


def test_weights_and_biases_gets_numbers_only(text, tmp_path, monkeypatch):
    sent: list[tuple[str, object]] = []
    module = types.ModuleType("wandb")
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    module.init = lambda **options: sent.append(("init", options)) or module  # type: ignore
    module.log = lambda numbers, step: sent.append(("log", (step, numbers)))  # type: ignore
    module.finish = lambda exit_code: sent.append(("finish", exit_code))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    changes = settings(steps=4, log_every=2, eval_every=4, save_every=4)
    pretrain(
        "gpt2-tiny", data=text, out=tmp_path / "run", changes=changes,
        callbacks=[WandbCallback(project="p", mode="offline")], console=quiet(),
    )  # fmt: skip
    (_, options), *logs, end = sent
    assert options["project"] == "p"  # type: ignore[index]
    assert options["config"]["spec"]["vocab_size"]  # type: ignore[index]
    assert end == ("finish", 0)
    assert [one[1][0] for one in logs] == [2, 4, 4]  # type: ignore[index]
    assert all(isinstance(v, int | float) for one in logs for v in one[1][1].values())  # type: ignore
    assert "valid_loss" in logs[-1][1][1]  # type: ignore[index]


def test_without_wandb_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="EXTRAS=wandb"):
        WandbCallback(project="p")


def test_every_callback_ends_with_the_error_of_a_run(text, tmp_path):
    """Also where another one fails to end; files of events are closed, and the run can continue."""
    ends: list[object] = []

    class Failing(trivium.Callback):
        def on_save(self, folder):
            raise ZeroDivisionError

        def on_end(self, error):
            ends.append(type(error))
            raise ValueError("of the end")

    class Last(trivium.Callback):
        def on_end(self, error):
            ends.append(type(error))

    options = {"data": text, "out": tmp_path / "run", "console": quiet()}
    changes = settings(steps=4, log_every=2, eval_every=4, save_every=2)
    with pytest.raises(ValueError, match="of the end"):
        pretrain("gpt2-tiny", changes=changes, callbacks=[Failing(), Last()], **options)
    assert ends == [ZeroDivisionError] * 2
    run = pretrain("gpt2-tiny", resume="auto", callbacks=[Last()], **options)
    assert ends[2:] == [type(None)]
    assert [one["step"] for one in run.read_metrics()] == [2, 4, 4]


def test_a_callback_sees_what_those_before_it_add(text, tmp_path):
    seen: list[object] = []

    class Adds(trivium.Callback):
        def on_log(self, record):
            record["mine"] = 2 * record["step"]

    class Reads(trivium.Callback):
        def on_log(self, record):
            seen.append(record["mine"])

    changes = settings(steps=4, log_every=2, eval_every=4, save_every=4)
    run = pretrain(
        "gpt2-tiny", data=text, out=tmp_path / "run", changes=changes,
        callbacks=[Adds(), Reads()], console=quiet(),
    )  # fmt: skip
    assert seen == [4, 8]
    assert not any("mine" in record for record in run.read_metrics())  # which is written before


@pytest.mark.filterwarnings("ignore")  # of the library
def test_the_library_of_weights_and_biases_takes_the_numbers(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the extra wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    spec = types.SimpleNamespace(to_dict=lambda: {"vocab_size": 7})
    callback = WandbCallback(project="p", mode="offline", dir=tmp_path)
    callback.on_start(None, types.SimpleNamespace(spec=spec))  # type: ignore[arg-type]
    run, step = wandb.run, {"step": 3, "tokens": 99, "seconds": 1.5}
    callback.on_log({**step, "train_loss": 3.25, "warning": "a text"})
    callback.on_evaluate({**step, "valid_loss": 3.5, "samples": ["a text"]}, None)  # type: ignore
    callback.on_end(None)
    assert run.config["spec"] == {"vocab_size": 7}
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    stored = file.read_bytes()  # keys, and values as JSON
    for numbers in (b"train_loss", b"3.25", b"valid_loss", b"3.5"):
        assert numbers in stored
    assert b"a text" not in stored
