"""A model or a folder of shards has its own tokenizer: keys of another one are refused by name."""

from __future__ import annotations

import pytest
from run_settings import quiet, settings

from trivium import cli
from trivium.data.prepare import prepare
from trivium.errors import RecipeError
from trivium.objectives import task_kinds
from trivium.text import Tokenizer
from trivium.train.recipe_loading import build_recipe, load_recipe
from trivium.workflows.training import finetune, pretrain

KEYS = {"kind": "byte-bpe", "path": "/nonexistent/x.json", "vocab_size": 97, "lowercase": False}


@pytest.fixture(scope="module")
def shards(text, tmp_path_factory):
    """Shards with a tokenizer of another kind than an encoder has by default."""
    tokenizer = Tokenizer.train("byte-bpe", files=text, vocab_size=300, progress=False)
    out = tmp_path_factory.mktemp("prepared") / "shards"
    prepare([str(text)], tokenizer, out)
    return out


def continued(**train):
    """Settings of a run that has a tokenizer already."""
    return {name: table for name, table in settings(**train).items() if name != "tokenizer"}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("task", ["", *task_kinds()])
def test_a_key_of_a_tokenizer_beside_a_model_is_refused_by_name(task, key, encoder, tmp_path):
    tree = {"model": {"init_from": str(encoder.path)}, "data": {"paths": ["missing.txt"]}}
    tree |= {"objective": {"kind": task}} if task else {}
    message = rf"the model has its own tokenizer: leave tokenizer\.{key} out"
    with pytest.raises(RecipeError, match=message):  # in a file
        build_recipe({**tree, "tokenizer": {key: KEYS[key]}})
    with pytest.raises(RecipeError, match=message):  # --set
        build_recipe(tree, [f"tokenizer.{key}={KEYS[key]}"])
    with pytest.raises(RecipeError, match=message):  # Python
        pretrain(tree, out=tmp_path / "run", changes={"tokenizer": {key: KEYS[key]}})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_a_tokenizer_beside_shards_is_refused_by_name(key, shards, tmp_path):
    message = rf"the folder of shards has its own tokenizer: leave tokenizer\.{key} out"
    mix = [{"paths": [str(shards)]}, {"paths": ["more.txt"]}]
    tables = {"data": {"data": {"paths": [str(shards)]}}, "mix": {"mix": mix}}
    for sources in tables.values():
        tree = {"model": {"preset": "bert-tiny"}, **sources}
        with pytest.raises(RecipeError, match=message):
            build_recipe(tree, [f"tokenizer.{key}={KEYS[key]}"])
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[model]\npreset = "bert-tiny"\n[tokenizer]\n{key} = "{KEYS[key]}"\n')
    with pytest.raises(RecipeError, match=message):
        pretrain(recipe, data=shards, out=tmp_path / "run")


def test_the_commands_refuse_it_before_the_tokens_of_the_objective(encoder, text, tmp_path, capsys):
    command = ["pretrain", str(encoder.path), "--data", str(text), "--out", str(tmp_path / "run")]
    assert cli.main([*command, "--set", "tokenizer.kind=byte-bpe"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "the model has its own tokenizer: leave tokenizer.kind out" in error
    assert "[MASK]" not in error


@pytest.mark.parametrize("given", ["preset", "recipe"])
def test_a_run_of_shards_records_no_tokenizer_and_resumes_where_they_moved(given, shards, tmp_path):
    run = pretrain(
        "gpt2-tiny" if given == "preset" else load_recipe("gpt2-tiny"), data=shards,
        out=tmp_path / "run", changes=continued(steps=2), console=quiet(),
    )  # fmt: skip
    assert "[tokenizer]" not in run.recipe.read_text()
    fingerprints = [Tokenizer.load(f / "tokenizer.json").fingerprint for f in (run.path, shards)]
    assert fingerprints[0] == fingerprints[1]
    moved = shards.rename(tmp_path / "moved")
    try:
        run.recipe.write_text(run.recipe.read_text().replace(str(shards), str(moved)))
        pretrain("", out=run.path, changes={"train.steps": 3}, resume=True, console=quiet())
    finally:
        moved.rename(shards)
    assert run.read_metrics()[-1]["step"] == 3


def test_a_run_of_a_model_records_no_tokenizer_and_resumes(encoder, text, reviews, tmp_path):
    starts = {
        "pretrain": lambda **more: pretrain("" if more["resume"] else encoder.path, **more),
        "finetune": lambda **more: finetune(
            "classification", model="" if more["resume"] else encoder.path, **more
        ),
    }
    for name, start in starts.items():
        changes = continued(steps=2)
        if name == "finetune":
            changes["train"] = {"steps": 2, "device": "cpu", "save_every": 1}
        source = {"pretrain": text, "finetune": reviews}[name]
        out = tmp_path / name
        run = start(data=source, out=out, changes=changes, resume=False, console=quiet())
        assert "[tokenizer]" not in run.recipe.read_text()
        start(out=out, changes={"train.steps": 3}, resume=True, console=quiet())
        assert run.read_metadata()["finished"]


@pytest.mark.parametrize("paths", [["elsewhere.txt"], ["one.txt", "two/"]])
def test_data_beside_a_recipe_file_says_what_it_replaces(paths, encoder, text, tmp_path):
    recipe, console = tmp_path / "mine.toml", quiet()
    recipe.write_text(f'[model]\ninit_from = "{encoder.path}"\n[data]\npaths = {paths}\n')
    changes = continued(steps=1)
    pretrain(recipe, data=text, out=tmp_path / "run", changes=changes, console=console)
    replaced = f"--data replaces data.paths of the recipe: {', '.join(paths)}"
    assert replaced in console.file.getvalue()
