"""Who may work in a run folder, and what stays in it when a start fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from run_settings import quiet, settings

from trivium.errors import RecipeError, TriviumError
from trivium.text import Tokenizer
from trivium.train.recipe_loading import load_recipe
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import Interrupted
from trivium.workflows import training as training_module
from trivium.workflows.training import finetune, pretrain

HOLD_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_an_interrupt_before_the_first_step_says_what_is_kept(text, tmp_path, monkeypatch):
    def start(out, **options):
        changes = () if options.get("resume") else settings(steps=1)
        return pretrain(
            "bert-tiny", data=text, out=out, changes=changes, console=quiet(), **options
        )

    def interrupted(function, **options):
        def interrupt(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(training_module, function, interrupt)
            with pytest.raises(Interrupted) as caught:
                start(tmp_path / "run", **options)
        return str(caught.value)

    assert interrupted("load_corpus") == "interrupted before the first step, nothing is kept."
    assert not (tmp_path / "run").exists()
    message = interrupted("set_up_model")
    assert message.startswith("interrupted; what was prepared for the first step is kept. To")
    assert message.endswith(f"trivium pretrain --resume --out {tmp_path / 'run'}")
    run = start(tmp_path / "run", resume=True)
    message = interrupted("set_up_model", overwrite=True)
    assert message.endswith(f"nothing is kept; the run that was in {run.path} is still there.")
    assert run.read_metrics()[-1]["step"] == 1


def test_one_process_trains_a_run_and_a_lock_of_a_dead_one_is_free(text, tmp_path):
    path = tmp_path / "run"
    run = pretrain("bert-tiny", data=text, out=path, changes=settings(steps=4), console=quiet())
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(path / ".lock")], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(RecipeError, match="another process"):
            pretrain("bert-tiny", out=path, console=quiet(), resume=True)
        with pytest.raises(RecipeError, match="another process"):
            pretrain("bert-tiny", data=text, out=path, console=quiet(), overwrite=True)
    finally:
        holder.kill()
        holder.communicate()
    pretrain("bert-tiny", out=path, resume=True, changes=["train.steps=5"], console=quiet())
    assert run.read_metrics()[-1]["step"] == 5


def test_a_second_start_touches_nothing_of_the_first(tmp_path):
    run = RunFolder(tmp_path / "run")
    for prepared in (False, True):
        with run.lock(resume=False, overwrite=False):
            if prepared:
                run.recipe.write_text("seed = 1")
                run.metrics_file.touch()
            files = {path: path.read_bytes() for path in run.path.iterdir()}
            for resume, overwrite in ((False, False), (False, True), (prepared, False)):
                second = RunFolder(run.path).lock(resume=resume, overwrite=overwrite)
                with pytest.raises(RecipeError, match=f"process .id {os.getpid()}. is training"):
                    second.__enter__()
            assert {path: path.read_bytes() for path in run.path.iterdir()} == files
    # The first lets go of a folder that the second has opened, but not yet locked.
    shutil.rmtree(run.path)
    with run.lock(resume=False, overwrite=False):
        late = (run.path / ".lock").open("a+")
    assert not run.path.exists()
    with run.lock(resume=False, overwrite=False), late:
        assert not os.path.samestat(os.fstat(late.fileno()), (run.path / ".lock").stat())


def test_a_start_that_took_no_step_does_not_block_its_folder(text, tmp_path, monkeypatch):
    out = tmp_path / "run"

    def start(changes):
        return pretrain("bert-tiny", data=text, out=out, changes=changes, console=quiet())

    def fail(*_):
        raise TriviumError("it does not fit")

    other = settings(steps=1) | {"tokenizer": {"vocab_size": 120}}
    with monkeypatch.context() as patch:
        patch.setattr(training_module, "set_up_model", fail)
        for changes in (settings(steps=1), other, other):
            with pytest.raises(TriviumError, match="does not fit"):
                start(changes)
    (out / "notes.txt").touch()
    shard = out / "shards" / "train-00000.bin"
    encoded = shard.stat().st_mtime_ns
    run = start(other)  # the same command uses what is prepared
    assert shard.stat().st_mtime_ns == encoded
    assert Tokenizer.load(run.tokenizer).vocab_size == 120
    assert (out / "notes.txt").is_file()


def test_data_that_was_corrected_before_the_first_step_is_used(text, tmp_path, monkeypatch):
    """Also where the start before was killed, and could not remove what it had made."""
    corpus, rows = tmp_path / "corpus.txt", tmp_path / "rows.tsv"
    changes = settings(steps=1, batch_tokens=None, eval_tokens=None)

    def pretrained(out):
        pretrain("bert-tiny", data=corpus, out=out, changes=settings(steps=1), console=quiet())

    def finetuned(out):
        finetune(
            "classification", model="bert-tiny", data=rows, out=out, changes=changes,
            console=quiet(),
        )  # fmt: skip

    for start in (pretrained, finetuned):
        out, known = tmp_path / start.__name__, []
        for word in ("cat", "\u732b"):
            corpus.write_text(text.read_text().replace("cat", word))
            lines = (f"{word} {number}\ta\ndog {number}\tb\n" for number in range(20))
            rows.write_text("text\tlabel\n" + "".join(lines))
            with monkeypatch.context() as patch:
                if word == "cat":
                    patch.setattr(RunFolder, "remove_preparation", lambda self: None)
                    patch.setattr(training_module, "set_up_model", lambda *_: 1 / 0)
                with suppress(ZeroDivisionError):
                    start(out)
            tokenizer = Tokenizer.load(out / "tokenizer.json")
            known.append(tokenizer.unk_id not in tokenizer.encode("\u732b").ids)
        assert known == [False, True]


def test_a_folder_that_somebody_made_keeps_its_files(text, tmp_path, monkeypatch):
    mine, written = tmp_path / "mine", {}
    mine.mkdir()
    recipe = load_recipe("bert-tiny", settings(steps=1) | {"data": {"paths": [str(text)]}})
    for name in ("recipe.toml", "corpus.txt", "shards.txt"):
        (mine / name).write_text(recipe.to_toml().replace("seed = 0\n", ""))
        written[name] = (mine / name).read_text()
    with monkeypatch.context() as patch:
        patch.setattr(training_module, "set_up_model", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pretrain("", out=mine, resume=True, console=quiet())
    del written["recipe.toml"]
    with pytest.raises(RecipeError, match="already holds a run"):
        pretrain("bert-tiny", data=text, out=mine, console=quiet())
    assert pretrain("", out=mine, resume=True, console=quiet()).weights.is_file()
    assert {name: (mine / name).read_text() for name in written} == written


def test_other_sources_of_a_mix_are_prepared_anew(text, tmp_path, monkeypatch):
    def fail(*_):
        raise TriviumError("it does not fit")

    other, tokenizers = tmp_path / "other.txt", set()
    other.write_text("\n\n".join(f"quilt {number} of zebras" for number in range(200)))
    monkeypatch.setattr(training_module, "set_up_model", fail)
    for path in (text, other, other):
        mix = [{"name": "one", "paths": [str(path)], "objective": {"kind": "masked"}}]
        with pytest.raises(TriviumError, match="does not fit"):
            pretrain(
                "bert-tiny", out=tmp_path / "run", changes=settings(steps=1) | {"mix": mix},
                console=quiet(),
            )  # fmt: skip
        tokenizers.add((tmp_path / "run" / "tokenizer.json").read_bytes())
    assert len(tokenizers) == 2


def test_a_run_is_replaced_only_when_the_new_one_trains(text, tmp_path):
    path = tmp_path / "run"
    run = pretrain("bert-tiny", data=text, out=path, changes=settings(steps=2), console=quiet())
    weights = run.weights.read_bytes()

    def start(preset, out, changes, **options):
        return pretrain(preset, data=text, out=out, changes=changes, console=quiet(), **options)

    with pytest.raises(RecipeError, match="already holds a run"):
        start("bert-tiny", path, ())
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "recipe.toml").write_bytes(run.recipe.read_bytes())
    with pytest.raises(RecipeError, match="already holds a run"):  # or somebody's recipe
        start("bert-tiny", mine, ())
    assert pretrain("", out=mine, resume=True, console=quiet()).weights.is_file()
    shutil.rmtree(mine)
    too_long = settings(steps=2) | {"data": {"length": 10**7}}
    with pytest.raises(TriviumError):
        start("gpt2-tiny", path, too_long, overwrite=True)
    assert run.weights.read_bytes() == weights
    # Also where an attempt was killed before its first step.
    path.rename(tmp_path / ".run.replaced")
    path.mkdir()
    run.recipe.write_bytes((tmp_path / ".run.replaced" / run.recipe.name).read_bytes())
    with pytest.raises(TriviumError):
        start("gpt2-tiny", path, too_long, overwrite=True)
    assert run.weights.read_bytes() == weights
    start("gpt2-tiny", path, settings(steps=3), overwrite=True)
    assert run.read_metrics()[-1]["step"] == 3
    start("gpt2-tiny", path, settings(steps=4), overwrite=True, resume="auto")
    assert run.read_metadata()["resumed"] == [3]  # not thrown away
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    with pytest.raises(RecipeError, match="no run to resume"):
        pretrain("bert-tiny", out=tmp_path / "nowhere", resume=True, console=quiet())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(RecipeError, match="other things"):
        start("bert-tiny", tmp_path / "other", ())
