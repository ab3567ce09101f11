"""Recipes: one tree for TOML, `--set` and Python, with errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivium.errors import RecipeError, SpecError
from trivium.presets import presets
from trivium.train import defaults
from trivium.train.recipe import Recipe, load_recipe, shipped_recipes


def test_preset_name_is_a_recipe() -> None:
    recipe = load_recipe("gpt2-tiny", ["train.steps=7", "data.paths=['a.txt']", "seed=3"])
    assert (recipe.model.preset, recipe.train.steps, recipe.seed) == ("gpt2-tiny", 7, 3)
    assert recipe.data.paths == ("a.txt",)


def test_round_trip_through_toml(tmp_path: Path) -> None:
    recipe = defaults.complete(load_recipe("bert-mini", ["train.minutes=4"]), presets["bert-mini"])
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml())
    assert load_recipe(file) == recipe


def test_inline_spec_is_a_model() -> None:
    tree = {"model": {"spec": presets["llama-tiny"].to_dict(), "dropout": 0.25}}
    spec = Recipe.from_dict(tree).spec
    assert spec.decoder is not None
    assert spec.decoder.dropout == 0.25
    assert spec.replace(decoder=spec.decoder.replace(dropout=0.0)) == presets["llama-tiny"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.step=5", r'unknown key "train.step".*"steps"'),
        ("optimiser.lr=1", r'unknown key "optimiser".*"optimizer"'),
        ("train.lr=1", r'unknown key "train.lr".*"optimizer.lr"'),
        ("train.steps=0", r"train.steps.*greater than 0"),
        ("train.steps=many", r"train.steps.*integer"),
        ("objective.kind=guess", r"objective.kind.*masked"),
        ("train.steps", r"--set takes key=value"),
        ("objective.probability=1.5", r"less than or equal to 1"),
    ],
)
def test_bad_change_is_one_clear_error(change: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("bert-tiny", [change])


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(SpecError, match='"bert-small"'):
        load_recipe("bert-smal")
    with pytest.raises(RecipeError, match="no such recipe file"):
        load_recipe("nowhere.toml")


def test_one_budget_only() -> None:
    with pytest.raises(RecipeError, match="one budget"):
        load_recipe("bert-tiny", {"train": {"steps": 3, "epochs": 2}})
    replaced = load_recipe(load_recipe("bert-tiny", ["train.steps=3"]), ["train.epochs=2"])
    assert replaced.train.budget == {"epochs": 2}


def test_the_textbook_recipe_is_the_textbooks() -> None:
    recipe = load_recipe(shipped_recipes()["textbook-bert"])
    train = recipe.train
    assert recipe.model.preset == "bert-base"
    assert (recipe.tokenizer.kind, recipe.tokenizer.vocab_size) == ("wordpiece", 30_522)
    assert recipe.tokenizer.special_tokens == (
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "<S>",
        "<T>",
    )
    assert (recipe.data.length, recipe.data.validation) == (512, 0.1)
    assert recipe.objective.probability == 0.2
    assert (train.epochs, train.micro_batch, train.eval_batch) == (10, 10, 64)
    assert train.batch_tokens == 10 * 8 * 512
    assert train.log_every == train.eval_every == train.save_every == 1000


def test_defaults_follow_the_published_learning_rates() -> None:
    assert defaults.learning_rate(presets["llama-7b"]) == pytest.approx(3e-4, rel=0.2)
    assert defaults.learning_rate(presets["llama-65b"]) == pytest.approx(1.5e-4, rel=0.1)
