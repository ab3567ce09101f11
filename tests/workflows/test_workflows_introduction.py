"""What a run says before it trains is true of this run."""

from __future__ import annotations

import pytest
from run_settings import quiet, settings

from trivium.cli import app
from trivium.errors import RecipeError
from trivium.presets import catalogue, is_own_size, presets
from trivium.progress import ProgressLine
from trivium.train import defaults
from trivium.train.recipe_loading import load_recipe
from trivium.workflows.introduction import _tell_published
from trivium.workflows.training import pretrain

PUBLISHED = [name for name, spec in presets.items() if spec.stacks and not is_own_size(name)]


def told(recipe) -> str:
    console = quiet()
    _tell_published(ProgressLine(console), recipe)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize("preset", PUBLISHED)
def test_only_keys_of_the_paper_are_called_published(preset):
    try:
        recipe = defaults.complete(load_recipe(preset), presets[preset])
    except RecipeError as error:
        pytest.skip(str(error))  # it has no pretraining objective
    lines = told(recipe)
    assert ("as published" in lines) == bool(catalogue[preset].recipe)
    if catalogue[preset].recipe:
        assert "optimizer.lr, " in lines
        assert "train.tokens" in lines
        changes = ["optimizer.lr=1e-5", "train.steps=5"]
        changed = defaults.complete(load_recipe(preset, changes), presets[preset])
        assert not any(key in told(changed) for key in ("optimizer.lr,", "train.tokens"))
        assert "data.length" in told(changed)


@pytest.mark.parametrize(("width", "said"), [(None, False), (32, True)])
def test_a_run_says_before_it_trains_that_its_model_cannot_be_exported(
    width, said, text, tmp_path, capsys
):
    console, changes = quiet(), settings(steps=1)
    if width is not None:
        changes["model"]["encoder"] = {"layers": {"mixer": {"head_dim": width}}}
    pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=console)
    printed = " ".join(console.file.getvalue().split())
    problem = "bert, the nearest family, does not have encoder.layers.mixer.head_dim = 32"
    before, _ = printed.split("Training loss")
    assert (f"cannot be exported to Hugging Face: {problem}" in before) == said
    options = [] if width is None else [f"--set=model.encoder.layers.mixer.head_dim={width}"]
    for machine in (["--tokens=1e6", "--batch-tokens=4096", "--length=32"], ["--this-machine"]):
        with pytest.raises(SystemExit) as ended:
            app(["plan", "bert-tiny", *machine, *options])
        assert not ended.value.code
        assert (problem in " ".join(capsys.readouterr().out.split())) == said


def test_a_run_prints_the_sizes_that_follow_from_changed_ones(text, tmp_path):
    console, changes = quiet(), settings(steps=1)
    changes["model"]["d_model"] = 64
    pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=console)
    printed = " ".join(console.file.getvalue().split())
    assert "encoder.layers.mixer.head_dim = 32 (64)" in printed
    assert "encoder.layers.feed_forward.d_ff = 256 (512)" in printed
