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


def mixed(objective: str) -> Recipe:
    return load_recipe("t5-tiny", [f"objective.mix={objective}"])


def test_a_mix_is_written_alone_and_read_back(tmp_path: Path) -> None:
    recipe = mixed('[{kind="span-corruption", share=3}, {kind="prefix-lm"}]')
    recipe = load_recipe(recipe, ['data.mix=[{paths=["a"], weight=1}, {paths=["b"], weight=2}]'])
    complete = defaults.complete(recipe, presets["t5-tiny"])
    assert complete.objective.mix is not None
    assert [one.probability for one in complete.objective.mix] == [0.15, 0.15]
    file = tmp_path / "recipe.toml"
    file.write_text(complete.to_toml())
    assert load_recipe(file) == complete
    assert "[objective]" not in file.read_text()


def test_a_mix_takes_the_place_of_one_and_one_of_a_mix() -> None:
    recipe = load_recipe("textbook-bert", ['objective.mix=[{kind="masked"}, {max_span=3}]'])
    assert recipe.objective.mix is not None
    assert load_recipe(recipe, ["objective.kind=masked"]).objective.mix is None
    several = load_recipe("bert-tiny", ['data.mix=[{paths=["a"]}]'])
    assert load_recipe(several, ['data.paths=["b"]']).data.mix is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('objective.mix=[{knd="masked"}]', r'unknown key "objective.mix.0.knd".*"kind"'),
        ('objective.mix=[{kind="masked", share=0}]', "greater than 0"),
        ("objective.mix=[]", "at least 1"),
        ('data.mix=[{paths=["a"], weight=1}, {paths=["b"]}]', "a weight, or none"),
        ('data.mix=[{paths=["a"], name="x"}, {paths=["b"], name="x"}]', "one name"),
        ('data.mix=[{paths=["a"], name="../x"}]', "name"),
        ("data.mix=[{paths=[]}]", "at least 1"),
        ("data.temperature=2", r"\[\[data\.mix\]\]"),
    ],
)
def test_a_bad_mix_is_one_clear_error(change: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("bert-tiny", [change])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"paths": ["a"], "mix": [{"paths": ["b"]}]}, "not both"),
        ({"temperature": 2, "mix": [{"paths": ["b"], "weight": 1}]}, "temperature"),
        ({"validation": "held.txt", "mix": [{"paths": ["b"]}]}, "own validation"),
    ],
)
def test_what_a_mix_of_sources_does_not_go_with(data: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("bert-tiny", {"data": data})
    with pytest.raises(RecipeError, match="give either kind"):
        load_recipe("bert-tiny", {"objective": {"kind": "masked", "mix": [{"kind": "causal"}]}})


def test_shares_of_sources_follow_size_temperature_or_weight() -> None:
    paths = '{paths=["a"]}, {paths=["b"]}'
    by_size = load_recipe("bert-tiny", [f"data.mix=[{paths}]"]).data
    assert by_size.shares([30, 10]) == pytest.approx([0.75, 0.25])
    flat = load_recipe("bert-tiny", [f"data.mix=[{paths}]", "data.temperature=2"]).data
    assert flat.shares([90, 10]) == pytest.approx([0.75, 0.25])
    weighed = '{paths=["a"], weight=1}, {paths=["b"], weight=4}'
    assert load_recipe("bert-tiny", [f"data.mix=[{weighed}]"]).data.shares([9, 9]) == [0.2, 0.8]


def test_defaults_of_replaced_tokens_and_of_prefixes() -> None:
    electra = defaults.complete(load_recipe("electra-tiny"), presets["electra-tiny"]).objective
    assert (electra.kind, electra.mask_share, electra.random_share) == ("replaced-token", 1.0, 0.0)
    t5, bart, marian = (presets[name] for name in ("t5-tiny", "bart-tiny", "marian-tiny"))
    assert defaults.tokenizer_kind(t5, "prefix-lm") == "unigram"
    assert defaults.tokenizer_kind(bart, "prefix-lm") == "byte-bpe"
    assert "<extra_id_99>" in (defaults.special_tokens(t5, "prefix-lm") or ())
    assert defaults.special_tokens(marian, "prefix-lm") == ("<pad>", "</s>", "<unk>")
    assert defaults.special_tokens(presets["gpt2-tiny"], "prefix-lm") is None
    both = defaults.special_tokens(t5, "span-corruption", "denoising") or ()
    assert {"<mask>", "<extra_id_0>", "<s>"} <= set(both)
    assert not defaults.starts_with_end(t5, ("prefix-lm",))
    assert defaults.starts_with_end(bart, ("prefix-lm",))
    assert defaults.starts_with_end(t5, ("denoising",))
    assert not defaults.starts_with_end(bart, ("span-corruption", "denoising"))
