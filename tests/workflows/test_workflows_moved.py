"""Runs whose data or folder has moved, and runs that are resumed from another directory."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from types import SimpleNamespace

import pytest
from killed_runs import PRESETS, write_examples
from run_settings import assert_equal_runs, quiet, settings

from trivium.data.records import RecordOptions
from trivium.errors import RecipeError
from trivium.objectives import Objective
from trivium.objectives.example_split import read_table
from trivium.train.data_config import MixConfig
from trivium.workflows.corpus import Corpus, ExampleSource
from trivium.workflows.training import pretrain

TASKS = [kind for kind in PRESETS if Objective.kinds[kind].labelled]


@pytest.mark.parametrize("kind", TASKS)
def test_the_digest_of_examples_does_not_depend_on_their_place(kind, text, tmp_path):
    file = write_examples(tmp_path, text)[kind]
    objective = Objective.kinds[kind].from_tree({})
    tokenizer = SimpleNamespace(fingerprint="")
    digests = []
    for place in ("a", "b/c", "changed"):
        path = tmp_path / place / file.name
        path.parent.mkdir(parents=True)
        rows = file.read_text()
        path.write_text(rows if place != "changed" else "".join(rows.splitlines(True)[1:]))
        config = MixConfig.model_construct(name="", paths=(str(path),), objective=objective)
        table = read_table(objective, [str(path)], 0.0, RecordOptions(), tmp_path / "cache")
        source = ExampleSource(config, objective, table)
        digests.append(Corpus(None, tokenizer, None, [source]).digests)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("kind", ["classification", "preference", "policy"])
def test_a_labelled_run_goes_on_wherever_it_and_its_data_are(kind, text, tmp_path, monkeypatch):
    """Begun with relative paths: moved data is found by recipe.toml or by what is given."""
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    rows = write_examples(tmp_path, text)[kind].read_text().splitlines()
    (work / "data" / "train.jsonl").write_text("\n".join(rows[:18]))
    (work / "data" / "valid.jsonl").write_text("\n".join(rows[18:]))
    monkeypatch.chdir(work)
    objective = {"kind": kind}
    if kind == "policy":
        (work / "data" / "reward.py").write_text(
            "def length(prompts, responses, records):\n    return [len(r) for r in responses]\n"
        )
        monkeypatch.setenv("TRIVIUM_RUN_CODE", "1")
        reward = {"kind": "python", "function": "data/reward.py:length"}
        objective |= {"rewards": [reward], "max_new_tokens": 4}
    tree = {
        "objective": objective,
        "model": {"preset": PRESETS[kind]},
        "data": {"paths": ["data/train.jsonl"], "validation": ["data/valid.jsonl"]},
    }
    changes = settings(steps=2, log_every=1, eval_every=2, save_every=2, batch_examples=4)
    changes["train"] |= {"batch_tokens": None, "eval_tokens": None}
    more = ["train.steps=4"]
    run = pretrain(tree, out="run", changes=changes, console=quiet())
    kept = tomllib.loads(run.recipe.read_text())["data"]
    assert kept["paths"] == [str(work / "data" / "train.jsonl")]
    assert kept["validation"] == [str(work / "data" / "valid.jsonl")]
    shutil.copytree(work / "run", work / "moved")
    whole = pretrain("", out="run", resume=True, changes=more, console=quiet())
    # From another directory, with the run moved, and the absolute path given.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    shutil.copytree(work / "moved", elsewhere / "run")
    again = pretrain(
        "", data=work / "data" / "train.jsonl", out="run", resume=True, changes=more,
        console=quiet(),
    )  # fmt: skip
    assert_equal_runs(again, whole)
    # With moved data, which is given, or named in recipe.toml.
    shutil.move(work / "data", tmp_path / "new")
    shutil.copytree(work / "moved", elsewhere / "given")
    shutil.copytree(work / "moved", elsewhere / "edited")
    if kind != "policy":  # whose file of code is named in the recipe only
        given = pretrain(
            "", data="../new/train.jsonl", validation=["../new/valid.jsonl"], out="given",
            resume=True, changes=more, console=quiet(),
        )  # fmt: skip
        assert_equal_runs(given, whole)
    recipe = elsewhere / "edited" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(work / "data"), str(tmp_path / "new")))
    edited = pretrain("", out="edited", resume=True, changes=more, console=quiet())
    assert_equal_runs(edited, whole)
    # Other contents are still refused.
    (tmp_path / "new" / "train.jsonl").write_text("\n".join(rows[1:18]))
    with pytest.raises(RecipeError, match="changed since this run began: labelled files"):
        pretrain("", out="edited", resume=True, changes=["train.steps=5"], console=quiet())


def test_a_run_on_text_goes_on_wherever_it_and_its_text_are(text, tmp_path, monkeypatch):
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    (work / "texts").mkdir(parents=True)
    elsewhere.mkdir()
    shutil.copy(text, work / "texts" / "a.txt")
    (work / "valid.txt").write_text("\n\n".join(f"seven dogs {n}" for n in range(99)))
    monkeypatch.chdir(work)
    changes = settings(steps=2, eval_every=2, save_every=2)
    options = {"out": "run", "console": quiet()}
    pretrain("bert-tiny", data="texts/", validation=["valid.txt"], changes=changes, **options)
    shutil.move(work, elsewhere / "moved")
    monkeypatch.chdir(elsewhere)
    options = {"out": "moved/run", "resume": True, "console": quiet()}
    paths = {"data": "moved/texts", "validation": ["moved/valid.txt"]}
    run = pretrain("", changes=["train.steps=3"], **paths, **options)
    assert run.read_metrics()[-1]["step"] == 3
    paths["data"] = os.path.abspath(paths["data"])
    pretrain("bert-tiny", changes=["train.steps=4"], **paths, **options)
    assert run.read_metrics()[-1]["step"] == 4
    (elsewhere / "other.txt").write_text("other text\n")
    for data in ("other.txt", "missing.txt"):
        with pytest.raises(RecipeError, match=f"cannot change data.paths: .*{data}"):
            pretrain("", data=data, **options)


def test_a_model_to_start_from_is_found_from_another_directory(
    encoder, reviews, tmp_path, monkeypatch
):
    monkeypatch.chdir(encoder.path.parent)
    tree = {"model": {"init_from": encoder.path.name}, "objective": {"kind": "classification"}}
    train = {"steps": 2, "eval_every": 2, "save_every": 2, "device": "cpu"}
    out = tmp_path / "run"
    pretrain(tree, data=reviews, out=out, changes={"train": train}, console=quiet())
    monkeypatch.chdir(tmp_path)
    relative = os.path.relpath(encoder.path, tmp_path)
    run = pretrain("", out=out, resume=True, changes=["train.steps=3"], console=quiet())
    tree["model"]["init_from"] = relative
    run = pretrain(tree, out=out, resume=True, changes=["train.steps=4"], console=quiet())
    assert run.read_metrics()[-1]["step"] == 4
    assert json.loads(run.metadata_file.read_text())["resumed"] == [2, 3]
