"""Runs, models and recipes of version 0.2, which this version names and does not read."""

from __future__ import annotations

import json
import tomllib

import pytest
from run_settings import quiet, settings

import trivium
from trivium.errors import CheckpointError, RecipeError, TriviumError
from trivium.files import write_json
from trivium.model_folder import write_checksums
from trivium.train.checkpoint import checkpoints
from trivium.train.recipe_loading import load_recipe


@pytest.fixture
def run(tmp_path, text):
    """A run of two steps, with a checkpoint after each."""
    changes = settings(steps=2)
    changes["train"]["save_every"] = 1
    out = tmp_path / "run"
    trivium.pretrain("gpt2-tiny", data=text, out=out, changes=changes, console=quiet())
    return out


def make_old(folder):
    """Files of a model or checkpoint as version 0.2 wrote them: without the version."""
    for name in ("spec.json", "state.json"):
        if (folder / name).is_file():
            content = json.loads((folder / name).read_text())
            assert content.pop("trivium") == trivium.__version__
            write_json(folder / name, content)
    names = json.loads((folder / "checksums.json").read_text())
    write_checksums(folder, names)


def test_files_carry_the_version_that_wrote_them(run):
    assert tomllib.loads((run / "recipe.toml").read_text())["trivium"] == trivium.__version__
    manifests = list(run.rglob("manifest.json"))
    assert manifests
    for file in (run / "spec.json", *run.rglob("state.json"), *manifests):
        assert json.loads(file.read_text())["trivium"] == trivium.__version__, file
    trivium.load(run)
    assert load_recipe(str(run / "recipe.toml")).model.preset == "gpt2-tiny"


def test_a_model_of_version_0_2_is_refused_with_what_to_do(run, text, tmp_path):
    for folder in (run, *checkpoints(run / "checkpoints")):
        make_old(folder)
    with pytest.raises(CheckpointError, match=r"spec\.json.* version 0\.2.*Train again, or export"):
        trivium.load(run)
    with pytest.raises(TriviumError, match=r"version 0\.2.*Train again, or export"):
        trivium.pretrain(str(run), data=text, out=tmp_path / "b", console=quiet())


def test_a_run_of_version_0_2_is_not_resumed(run):
    for folder in checkpoints(run / "checkpoints"):
        make_old(folder)
    with pytest.raises(CheckpointError, match=r" version 0\.2.*Train again, or export"):
        trivium.pretrain("", out=run, resume=True, changes={"train": {"steps": 3}}, console=quiet())


@pytest.mark.parametrize(
    "change",
    [
        "model.decoder.mixer.num_heads=4",
        "model.decoder.feed_forward.d_ff=64",
        "model.decoder.norm.eps=1e-3",
        "model.decoder.block.kind=parallel",
    ],
)
def test_a_key_of_version_0_2_names_the_new_one(change):
    part = change.split(".")[2]
    with pytest.raises(RecipeError, match=rf"model\.decoder: {part} .* set layers\.{part}"):
        load_recipe("gpt2-tiny", [change])
