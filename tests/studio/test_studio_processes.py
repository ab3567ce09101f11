"""Runs as processes: start, stop, resume, kill, and what a restarted studio finds."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time

import pytest

from trivium.errors import TriviumError
from trivium.studio import processes
from trivium.studio.goals import GOALS, Choices
from trivium.studio.processes import StudioFolder

SENTENCES = "The cat sat on a mat. Seven grey dogs ran over it.\n\n"


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path):
    studio = StudioFolder(tmp_path / "studio")
    yield studio
    while name := studio.find_training_run():
        studio.stop(name)
        time.sleep(0.05)


@pytest.fixture
def script(monkeypatch):
    """Makes the studio run a Python program in place of `trivium`."""

    def replace(program):
        monkeypatch.setattr(processes, "_command", lambda _: [sys.executable, "-c", program])

    return replace


def test_one_run_trains_at_a_time_and_a_restarted_studio_finds_it(folder, script):
    script("import time; print('begun', flush=True); time.sleep(60)")
    folder.start("first", ["pretrain", "a b"])
    assert folder.find_training_run() == "first"
    wait_until(lambda: "begun" in folder.read_state("first").log)
    state = folder.read_state("first")
    assert (state.status, state.is_active, state.can_resume) == ("preparing", True, False)
    assert state.commands == ("trivium pretrain 'a b'",)
    again = StudioFolder(folder.path)  # as after a restart: it knows only the files
    for studio in (folder, again):
        with pytest.raises(TriviumError, match="first is training: one run trains at a time"):
            studio.start("second", ["pretrain"])
        assert studio.find_training_run() == "first"
    assert again.list_runs() == ["first"]
    again.stop("second")  # another name stops nothing
    assert again.find_training_run() == "first"
    again.stop("first")
    wait_until(lambda: folder.find_training_run() is None)
    assert again.read_state("first").status == "killed"  # this program says nothing at its end
    with pytest.raises(TriviumError, match="there is already a run 'first'"):
        folder.start("first", ["pretrain"])
    folder.start("second", ["pretrain"])
    assert again.find_training_run() == "second"


def test_how_a_run_ended(folder, script):
    endings = {
        "failed": "print('error: the file is empty.'); raise SystemExit(1)",
        "stopped": "print('interrupted; step 7 is saved. To resume:')",
        "killed": "import os; os.kill(os.getpid(), 9)",
    }
    for status, program in endings.items():
        script(program)
        folder.start(status, ["pretrain"])
        wait_until(lambda: folder.find_training_run() is None)
        assert folder.read_state(status).status == status
    assert folder.read_state("failed").error == "the file is empty."
    assert folder.read_state("nothing").status == "new"
    with pytest.raises(TriviumError, match="failed has no checkpoint to resume from"):
        folder.resume("failed")
    with pytest.raises(TriviumError, match="cannot be the name of a run"):
        folder.read_state("../../etc")


def test_a_second_studio_is_refused(folder):
    second = StudioFolder(folder.path).opened()
    refused = pytest.raises(TriviumError, match=f"another studio \\(process {os.getpid()}\\)")
    with folder.opened(), refused:
        second.__enter__()
    with StudioFolder(folder.path).opened():
        pass
    (folder.path / "file").touch()
    with pytest.raises(TriviumError, match="is a file"):
        StudioFolder(folder.path / "file")


def test_paths_and_samples(folder, tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("a")
    monkeypatch.chdir(tmp_path)
    assert folder.find_data(" mine.txt ") == str(tmp_path / "mine.txt")
    assert folder.find_data("*.txt") == str(tmp_path / "*.txt")
    assert folder.find_data("hf:name") == "hf:name"
    for wrong in ("", "absent.txt"):
        with pytest.raises(TriviumError, match="there is no such file or folder"):
            folder.find_data(wrong)
    assert folder.shorten_path(str(folder.uploads / "a.txt")) == "uploads/a.txt"
    assert folder.shorten_path("/etc/hosts") == "/etc/hosts"
    assert folder.get_sample("movies.jsonl") == "samples/movies.jsonl"
    assert (folder.path / "samples" / "movies.jsonl").is_file()


def test_models_to_start_from(folder):
    specs = {"dec": {"decoder": {"a": 1}}, "enc": {"encoder": {"a": 1}, "decoder": None}}
    specs["tuned"] = specs["unfinished"] = specs["enc"]
    for name, spec in specs.items():
        run = folder.runs / name
        run.mkdir()
        metadata = {"finished": name != "unfinished", "task": "tagging" if name == "tuned" else ""}
        for file, content in (("spec", spec), ("run", metadata)):
            (run / f"{file}.json").write_text(json.dumps(content))
        (run / "model.safetensors").touch()
    (folder.runs / "damaged").mkdir()
    (folder.runs / "damaged" / "run.json").write_text("{")
    assert folder.list_bases("decoder-only") == ["runs/dec"]
    assert folder.list_bases("encoder-only") == ["runs/enc"]
    assert folder.list_bases(None) == []
    assert folder.read_state("damaged").metadata == {}


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["continue", "classify"])
def test_a_forecast_is_measured_and_leaves_nothing(folder, tmp_path, goal):
    (tmp_path / "text.txt").write_text("".join(f"{n}. {SENTENCES}" for n in range(400)))
    rows = [{"text": f"a {w} film {n}", "label": w} for n in range(50) for w in ("good", "bad")]
    (tmp_path / "labelled.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {"continue": "text.txt", "classify": "labelled.jsonl"}[goal]
    settings = ("tokenizer.vocab_size=300", "data.length=32", "train.log_every=50")
    choices = Choices(GOALS[goal], (str(tmp_path / data),), "small", 1.0, changes=settings)
    before = {*folder.path.iterdir()}
    measured = folder.measure(choices)
    forecast = measured["forecast"]
    speed = pytest.approx(forecast["tokens_per_second"] * 60.0)
    assert forecast["tokens"] == speed
    assert forecast["steps"] > 0
    assert {*folder.path.iterdir()} == before
    assert folder.list_runs() == []
    if goal == "classify":
        assert measured["train_examples"] + measured["valid_examples"] == 100
        assert measured["first_loss"] == pytest.approx(math.log(2), abs=0.5)  # random guessing
    else:
        assert measured["documents"] == 400
        # A model without knowledge gives all tokens about the same probability.
        assert measured["first_loss"] == pytest.approx(math.log(measured["vocab_size"]), abs=1.0)
        assert 0 < measured["unigram_loss"] < measured["first_loss"]
    with pytest.raises(TriviumError, match="There is no file or folder"):
        folder.measure(Choices(GOALS[goal], ("absent",), "small", 1.0))


@pytest.mark.slow
def test_a_whole_run_with_stop_kill_and_resume(folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n}. {SENTENCES}" for n in range(400)))
    settings = ("tokenizer.vocab_size=300", "data.length=32", "train.batch_tokens=224")
    settings += ("train.log_every=1", "train.eval_every=5", "train.save_every=5")
    choices = Choices(GOALS["continue"], (str(text),), "small", 2.0, changes=settings)
    found = folder.run_json(choices.build_check())["findings"]
    assert (found[0]["check"], found[0]["count"]) == ("documents", 400)
    folder.start("story", choices.build_command("runs/story"))
    wait_until(lambda: len(folder.read_state("story").records) > 8)
    folder.stop("story")
    wait_until(lambda: folder.find_training_run() is None)
    state = folder.read_state("story")
    assert (state.status, state.can_resume) == ("stopped", True)
    steps = state.records[-1]["step"]
    folder.resume("story")
    wait_until(lambda: folder.read_state("story").records[-1]["step"] > steps)
    process = folder._find_process()[1]
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: folder.find_training_run() is None)
    state = folder.read_state("story")
    assert (state.status, state.can_resume) == ("killed", True)
    folder.resume("story", minutes=0.05)  # less than it has had: it ends at once
    wait_until(lambda: folder.find_training_run() is None)
    state = folder.read_state("story")
    assert (state.status, state.has_model) == ("finished", True)
    assert state.samples[-1]["samples"][0]["output"]
    assert len(state.commands) == 3
    assert folder.list_bases("decoder-only") == ["runs/story"]
    assert "LlamaForCausalLM" in folder.export("story", "hf")
    with pytest.raises(TriviumError, match=r"There is no file or folder absent\.txt"):
        folder.run_json(["check", "absent.txt", "--json"])
