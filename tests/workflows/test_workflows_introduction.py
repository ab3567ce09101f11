"""What a run says before it trains is true of this run."""

from __future__ import annotations

import math
import re

import pytest
from run_settings import quiet, settings

from trivium.cli import app
from trivium.errors import RecipeError
from trivium.plan import forecast
from trivium.presets import presets
from trivium.presets.published import published_recipes
from trivium.progress import ProgressLine
from trivium.train import defaults
from trivium.train.recipe_loading import load_recipe
from trivium.workflows.introduction import _print_published_comparison
from trivium.workflows.training import pretrain


def told(recipe) -> str:
    console = quiet()
    _print_published_comparison(ProgressLine(console), recipe)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize("preset", published_recipes())
def test_only_keys_of_the_paper_are_called_published(preset):
    try:
        recipe = defaults.complete(load_recipe(preset), presets[preset])
    except RecipeError as error:
        pytest.skip(str(error))  # it has no pretraining objective
    lines, published = told(recipe), published_recipes()[preset]
    assert ("as published (" in lines) == published.is_complete
    assert "not as published" not in lines
    if not published.is_complete:
        assert ("no complete recipe is published" in lines) == (recipe.defaults == "fast")
        return
    name, _ = published.budget
    assert "optimizer.lr" in re.split("[, ]+", lines)
    assert name in lines
    changes = ["optimizer.lr=1e-5", "train.steps=5"]
    changed = told(defaults.complete(load_recipe(preset, changes), presets[preset]))
    same, different = changed.split("differs from the paper: ")
    assert "data.length" in same
    assert "optimizer.lr = 1e-05 (published: " in different
    assert name in different
    assert not {"optimizer.lr", name} & set(re.split("[, ]+", same))


def test_the_published_budget_runs_only_if_it_is_set(text, tmp_path, monkeypatch):
    """A million steps take days; the error names what to set. Few steps on much text are fine."""
    small = {"num_layers": 1, "layers": {"mixer": {"num_heads": 2}}}
    changes = {"model": {"d_model": 8, "encoder": small}, "tokenizer": {"vocab_size": 300}}
    changes |= {"data": {"length": 32}, "train": {"batch_tokens": 32 * 7, "device": "cpu"}}
    monkeypatch.setattr(forecast, "_MIN_TIMED_SECONDS", 0.1)
    with pytest.raises(RecipeError, match=r"train.steps = 1,000,000, .*--set train.minutes=60"):
        pretrain(
            "bert-base", data=text, out=tmp_path / "run", changes=changes, console=quiet()
        )  # fmt: skip
    monkeypatch.setattr(forecast, "_DAY", math.inf)
    with pytest.raises(
        RecipeError, match=r"reads this text [0-9,]+ times, while Devlin et al. 2018"
    ):
        pretrain(
            "bert-base", data=text, out=tmp_path / "other", changes=changes, console=quiet()
        )  # fmt: skip


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
