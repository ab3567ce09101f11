"""Runs and models in object storage."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
from object_storage import empty_memory, serve_s3
from run_settings import assert_equal_runs, quiet, settings

import trivium
from trivium.cli import main
from trivium.config import flatten_keys
from trivium.data.prepare import prepare
from trivium.errors import CheckpointError, DataError, RecipeError
from trivium.model_folder import find_damage
from trivium.text import Tokenizer
from trivium.train import trainer as trainer_module
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import Interrupted
from trivium.workflows.training import pretrain

URL = "memory://bucket/runs/gpt"


@pytest.fixture
def storage(monkeypatch, tmp_path):
    """An empty object storage in memory, and an empty cache."""
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    return empty_memory()


@pytest.fixture
def other_machine(monkeypatch, tmp_path):
    """A function that empties the cache, as on a machine that has not seen the run."""

    def change(name="other"):
        monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / name))

    return change


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory) -> RunFolder:
    """The run in a local folder, without interruption."""
    out = tmp_path_factory.mktemp("whole") / "gpt"
    return pretrain("gpt2-tiny", data=text, out=out, changes=settings(), console=quiet())


def start(text, out=URL, console=None, **options):
    console = console or quiet()
    return pretrain("gpt2-tiny", data=text, out=out, changes=settings(), console=console, **options)


def resume(out=URL, console=None):
    return pretrain("", out=out, resume=True, console=console or quiet())


def interrupt(monkeypatch, step, begin):
    """Send SIGTERM to the run that `begin` starts, in this step."""
    original = trainer_module.forward_backward

    def signalled(trainer, batch, at):
        if at == step - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(trainer, batch, at)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "forward_backward", signalled)
        with pytest.raises(Interrupted) as caught:
            begin()
    return str(caught.value)


def remote_names(storage, pattern=""):
    names = (name.removeprefix("/bucket/runs/gpt/") for name in storage.find("/bucket/runs/gpt"))
    return [name for name in names if re.match(pattern, name)]


def remote_steps(storage):
    marked = remote_names(storage, r"checkpoints/step-\d+/checksums.json")
    return [int(re.findall(r"\d+", name)[0]) for name in marked]


def test_a_run_is_resumed_on_another_machine(
    storage, other_machine, monkeypatch, tmp_path, text, whole
):
    message = interrupt(monkeypatch, 14, lambda: start(text))
    assert message.endswith(f"trivium pretrain --resume --out {URL}")
    assert remote_steps(storage) == [8, 12, 14]
    first = RunFolder(URL)
    assert {*remote_names(storage)} == {
        file.relative_to(first.path).as_posix()
        for file in first.path.rglob("[!.]*")
        if file.is_file()
    }
    other_machine()
    with pytest.warns(UserWarning, match="has not finished: this is its checkpoint of step 14"):
        trivium.load(URL)
    lm = trivium.load(URL, checkpoint=12)
    assert lm.generate("the cat", max_new_tokens=3, temperature=0)
    with pytest.raises(CheckpointError, match="no checkpoint of step 9; it has 8, 12, 14"):
        trivium.load(URL, checkpoint=9)
    run = resume()
    assert run.path.is_relative_to(tmp_path / "other")
    assert_equal_runs(run, whole)
    assert remote_steps(storage) == [16, 20, 24]
    # The copy has all files, which are undamaged.
    copy = tmp_path / "copy"
    storage.get("/bucket/runs/gpt", str(copy), recursive=True)
    for folder in (copy, *(copy / "checkpoints").iterdir()):
        if any(folder.iterdir()):  # memory:// keeps the folders of deleted files
            assert find_damage(folder, ["*"]) is None
    assert_equal_runs(RunFolder(copy), whole)
    # The model is the same as that of the local run, and is not downloaded again.
    expected = trivium.load(whole.path).generate("the cat", max_new_tokens=9, temperature=0)
    assert trivium.load(URL).generate("the cat", max_new_tokens=9, temperature=0) == expected
    with monkeypatch.context() as patch:
        patch.setattr(type(storage), "get_file", lambda *_, **__: pytest.fail("downloaded"))
        trivium.load(URL)


def test_incomplete_and_damaged_checkpoints_are_not_used(
    storage, other_machine, monkeypatch, text, whole
):
    interrupt(monkeypatch, 14, lambda: start(text))
    storage.rm_file("/bucket/runs/gpt/checkpoints/step-00000014/checksums.json")
    weights = "/bucket/runs/gpt/checkpoints/step-00000012/model.safetensors"
    content = bytearray(storage.cat_file(weights))
    content[-1] ^= 1
    storage.pipe_file(weights, bytes(content))
    other_machine()
    console = quiet()
    with pytest.warns(UserWarning, match=r"step-00000012: model.safetensors does not match"):
        run = resume(console=console)
    assert "step 8" in console.file.getvalue()
    assert_equal_runs(run, whole)
    assert remote_steps(storage) == [16, 20, 24]
    assert remote_names(storage, "checkpoints/step-0000001[24]") == []
    for name in remote_names(storage, r".*model.safetensors"):
        storage.pipe_file(f"/bucket/runs/gpt/{name}", b"damaged")
    other_machine("third")
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(CheckpointError, match="all of its checkpoints are damaged"),
    ):
        resume()


@pytest.mark.slow
def test_a_run_in_object_storage_is_replaced_only_with_overwrite(
    storage, other_machine, monkeypatch, text
):
    start(text)
    for change in (lambda: None, other_machine):
        change()
        with pytest.raises(RecipeError, match=f"{URL} already holds a run: continue it"):
            start(text)
    before = {name: storage.cat_file(name) for name in storage.find("/bucket")}
    message = interrupt(monkeypatch, 1, lambda: start(text, overwrite=True))
    assert "step 1 is saved" in message
    assert remote_steps(storage) == [1]
    assert not {*remote_names(storage)} & {"model.safetensors", "report.html"}
    # A start that fails before its first checkpoint leaves the old run.
    before = {name: storage.cat_file(name) for name in storage.find("/bucket")}
    monkeypatch.setattr(trainer_module, "forward_backward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        start(text, overwrite=True)
    assert {name: storage.cat_file(name) for name in storage.find("/bucket")} == before
    storage.pipe_file("/bucket/shards/manifest.json", b"{}")
    for overwrite in (False, True):
        with pytest.raises(RecipeError, match="a folder with other things"):
            start(text, "memory://bucket/shards", overwrite=overwrite)
    assert storage.cat_file("/bucket/shards/manifest.json") == b"{}"


@pytest.mark.slow
def test_the_local_copy_of_another_run_is_not_mistaken(
    storage, other_machine, monkeypatch, tmp_path, text
):
    start(text)
    other_machine()
    interrupt(monkeypatch, 6, lambda: start(text, overwrite=True))
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RecipeError, match=r"another run than its local copy, .*Delete the local"):
        resume()
    with pytest.raises(RecipeError, match="no run to resume here"):
        resume("memory://bucket/none")


@pytest.mark.slow
def test_the_newer_copy_counts(storage, other_machine, monkeypatch, tmp_path, text, whole):
    interrupt(monkeypatch, 6, lambda: start(text))
    other_machine()
    interrupt(monkeypatch, 13, resume)
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    console = quiet()
    run = resume(console=console)
    assert "step 13" in console.file.getvalue()
    assert_equal_runs(run, whole)


def test_a_model_folder_is_read_from_a_url(storage, tmp_path, whole):
    lm = trivium.load(whole.path)
    lm.save_hf(tmp_path / "hf")
    lm.save(tmp_path / "saved")
    expected = lm.generate("the cat", max_new_tokens=9, temperature=0)
    for name in ("hf", "saved"):
        storage.put(str(tmp_path / name), f"/bucket/{name}", recursive=True)
        same = trivium.load(f"memory://bucket/{name}/")
        assert same.generate("the cat", max_new_tokens=9, temperature=0) == expected
    # A file that changes is downloaded again, and a file that was deleted is deleted.
    storage.pipe_file("/bucket/hf/model.safetensors", b"damaged")
    storage.rm_file("/bucket/saved/model.safetensors")
    for name in ("hf", "saved"):
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            trivium.load(f"memory://bucket/{name}")
    with pytest.raises(CheckpointError, match="memory://bucket/none: there is no model"):
        trivium.load("memory://bucket/none")


def refuse(storage, monkeypatch, is_down):
    """Let no file be written while `is_down` is set."""
    put = type(storage).put_file

    def put_file(self, *args, **kwargs):
        if is_down.is_set():
            raise ConnectionError("no route to host")
        return put(self, *args, **kwargs)

    monkeypatch.setattr(type(storage), "put_file", put_file)


def test_training_outlives_a_storage_that_is_down(storage, monkeypatch, text, whole):
    is_down = threading.Event()
    is_down.set()
    refuse(storage, monkeypatch, is_down)

    class Repair(trivium.Callback):
        def on_save(self, folder):
            if folder.name == "step-00000020":
                is_down.clear()

    console = quiet()
    run = start(text, console=console, callbacks=[Repair()])
    printed = console.file.getvalue()
    assert printed.count("was not uploaded") == printed.count("no route to host") == 1
    assert_equal_runs(run, whole)
    assert remote_steps(storage) == [16, 20, 24]


@pytest.mark.slow
def test_a_run_that_cannot_be_uploaded_says_where_it_is(storage, monkeypatch, text, whole):
    is_down = threading.Event()
    refuse(storage, monkeypatch, is_down)
    is_down.set()
    console = quiet()
    interrupt(monkeypatch, 6, lambda: start(text, console=console))
    assert f"the run was not uploaded to {URL}" in console.file.getvalue()
    with pytest.raises(CheckpointError, match="no route to host") as caught:
        resume()
    folder = RunFolder(URL)
    assert str(folder.path) in str(caught.value)
    assert_equal_runs(folder, whole)
    assert storage.find("/bucket") == []
    is_down.clear()
    for command in re.findall(r"`(.*?)`", str(caught.value)):
        storage.rm("/bucket", recursive=True) if storage.exists("/bucket") else None
        program, *arguments = shlex.split(command)
        if program == "python":
            exec(arguments[1], {})
        else:
            resume()
        assert remote_steps(storage) == [16, 20, 24]
        assert "model.safetensors" in remote_names(storage)


def trivium_command(*arguments, environment, cache):
    return subprocess.Popen(
        [sys.executable, "-m", "trivium", *arguments],
        env={**os.environ, **environment, "TRIVIUM_CACHE": str(cache), "HOME": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_command(*arguments, environment, cache):
    process = trivium_command(*arguments, environment=environment, cache=cache)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    return printed


def list_bucket(client):
    found = client.list_objects_v2(Bucket="bucket", Prefix="runs/gpt/").get("Contents", ())
    return [one["Key"].removeprefix("runs/gpt/") for one in found]


@pytest.mark.slow
def test_a_run_on_an_s3_server_is_killed_and_resumed_on_another_machine(
    tmp_path, monkeypatch, text
):
    """Shards, run and model in a bucket; the final model is that of a local run."""
    changes = settings(steps=160, save_every=16, log_every=8, eval_every=40)
    del changes["tokenizer"]  # the shards have their own
    tokenizer, local = tmp_path / "tokenizer.json", tmp_path / "shards"
    Tokenizer.train("byte-bpe", text, vocab_size=300).save(tokenizer)
    prepare(text, Tokenizer.load(tokenizer), local)
    whole = tmp_path / "whole"
    pretrain("gpt2-tiny", data=local, out=whole, changes=changes, console=quiet())
    keys = [f"--set={key}={json.dumps(value)}" for key, value in flatten_keys(changes).items()]
    shards, url = "s3://bucket/shards", "s3://bucket/runs/gpt"
    with serve_s3("bucket") as (server, client):
        here = {"environment": server.environment, "cache": tmp_path / "first"}
        run_command(*("prepare", str(text), "--tokenizer", str(tokenizer), "--out", shards), **here)
        process = trivium_command(
            *("pretrain", "gpt2-tiny", "--data", shards, "--out", url, *keys), **here
        )
        second = "checkpoints/step-00000032/checksums.json"
        while second not in list_bucket(client):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)  # the server is a thread of this process
        process.kill()
        process.communicate()
        complete = [name for name in list_bucket(client) if name.endswith("checksums.json")]
        client.delete_object(Bucket="bucket", Key=f"runs/gpt/{complete[-1]}")
        there = {"environment": server.environment, "cache": tmp_path / "second"}
        printed = run_command("pretrain", "--resume", "--out", url, **there)
        [earlier] = re.findall(r"\d+", complete[-2])
        assert f"step {int(earlier)}" in printed
        names = list_bucket(client)
        steps = [name for name in names if re.match("checkpoints/.*/checksums.json", name)]
        assert [int(re.findall(r"\d+", name)[0]) for name in steps] == [128, 144, 160]
        copy = tmp_path / "copy"
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            client.download_file("bucket", f"runs/gpt/{name}", str(copy / name))
        assert_equal_runs(RunFolder(copy), RunFolder(whole))
        for name, value in {**server.environment, "TRIVIUM_CACHE": str(tmp_path / "third")}.items():
            monkeypatch.setenv(name, value)
        expected = trivium.load(whole).generate("the cat", max_new_tokens=9, temperature=0)
        assert trivium.load(url).generate("the cat", max_new_tokens=9, temperature=0) == expected
        assert main(["export", url, str(tmp_path / "exported"), "--card"]) == 0
        assert (tmp_path / "exported" / "model.safetensors").is_file()


@pytest.mark.slow
def test_an_s3_server_that_is_down_costs_no_step(tmp_path, monkeypatch, text, whole):
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    with serve_s3("bucket") as (server, client):
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = "s3://bucket/runs/gpt"

        class Stop(trivium.Callback):
            def on_save(self, folder):
                if folder.name == "step-00000008":
                    server.stop()

        with pytest.raises(CheckpointError, match="was not uploaded to s3://bucket/runs/gpt"):
            start(text, url, callbacks=[Stop()])
        assert_equal_runs(RunFolder(url), whole)
        with pytest.raises(DataError, match="s3://bucket/runs/gpt cannot be listed"):
            trivium.load(url)
        server.start()
        assert "model.safetensors" not in list_bucket(client)
        resume(url)
        assert "model.safetensors" in list_bucket(client)
        assert trivium.load(url).generate("the cat", max_new_tokens=3)
        with pytest.raises(DataError, match="bucket"):
            start(text, "s3://no-bucket/runs/gpt")
