"""The catalogue of published recipes: tables typed from the papers, and layers of recipes."""

from __future__ import annotations

import re

import pytest

from trivium.errors import RecipeError
from trivium.presets import catalogue, is_own_size, presets
from trivium.presets.published import published_recipes
from trivium.train import defaults
from trivium.train.recipe_layers import compare_with_published
from trivium.train.recipe_loading import format_recipe_file, load_recipe, read_origins

RECIPES = published_recipes()
COMPLETE = [name for name, recipe in RECIPES.items() if recipe.is_complete]

BERT_STEPS, ROW = 1_000_000, 512
# Keys and values as the papers give them, batches as sequences times tokens.
PAPERS = {
    # Devlin et al. 2018, appendix A.2.
    "bert-base": {
        "train.steps": BERT_STEPS,
        "train.batch_tokens": 256 * ROW,
        "data.length": ROW,
        "optimizer.kind": "adamw",
        "optimizer.lr": 1e-4,
        "optimizer.betas": [0.9, 0.999],
        "optimizer.weight_decay": 0.01,
        "schedule.kind": "linear",
        "schedule.warmup": 10_000,
        "model.dropout": 0.1,
        "objective.kind": "sentence-pairs",
        "objective.pairs": "nsp",
        "objective.probability": 0.15,
        "objective.mask_share": 0.8,
        "objective.random_share": 0.1,
        "tokenizer.kind": "wordpiece",
    },
    # Radford et al. 2019, sections 2.2 and 2.3: no optimizer, rate, schedule or length of training.
    "gpt2": {
        "data.length": 1024,
        "train.batch_tokens": 512 * 1024,
        "tokenizer.kind": "byte-bpe",
        "tokenizer.vocab_size": 50_257,
        "objective.kind": "causal",
    },
    # Brown et al. 2020, table 2.1 and appendix B.
    "gpt3-175b": {
        "train.tokens": 300e9,
        "train.batch_tokens": 3.2e6,
        "data.length": 2048,
        "optimizer.kind": "adamw",
        "optimizer.lr": 0.6e-4,
        "optimizer.betas": [0.9, 0.95],
        "optimizer.eps": 1e-8,
        "optimizer.weight_decay": 0.1,
        "schedule.kind": "cosine",
        "schedule.final": 0.1,
        "schedule.warmup": 375e6 / 300e9,
        "train.clip": 1.0,
    },
    # Raffel et al. 2019, sections 3.1.2, 3.1.3 and 3.7.
    "t5-base": {
        "train.steps": 1_000_000,
        "train.batch_tokens": 2**11 * ROW,
        "data.length": ROW,
        "optimizer.kind": "adafactor",
        "optimizer.lr": 1 / 10_000**0.5,
        "schedule.kind": "inverse-sqrt",
        "schedule.warmup": 10_000,
        "model.dropout": 0.1,
        "objective.kind": "span-corruption",
        "objective.probability": 0.15,
        "objective.mean_span": 3,
        "tokenizer.vocab_size": 32_000,
    },
    # Lewis et al. 2019, sections 2.2 and 5.1: little is said of the base size.
    "bart-base": {
        "objective.kind": "denoising",
        "objective.probability": 0.3,
        "objective.mean_span": 3,
        "objective.permute_sentences": True,
        "tokenizer.kind": "byte-bpe",
    },
    # Touvron et al. 2023, table 2 and section 2.3.
    "llama-65b": {
        "train.tokens": 1.4e12,
        "train.batch_tokens": 4e6,
        "optimizer.kind": "adamw",
        "optimizer.lr": 1.5e-4,
        "optimizer.betas": [0.9, 0.95],
        "optimizer.weight_decay": 0.1,
        "schedule.kind": "cosine",
        "schedule.final": 0.1,
        "schedule.warmup": 2000,
        "train.clip": 1.0,
        "tokenizer.kind": "bpe",
    },
    # Liu et al. 2019, table 9.
    "roberta-base": {
        "train.steps": 500_000,
        "train.batch_tokens": 8192 * ROW,
        "data.length": ROW,
        "optimizer.kind": "adamw",
        "optimizer.lr": 6e-4,
        "optimizer.betas": [0.9, 0.98],
        "optimizer.eps": 1e-6,
        "optimizer.weight_decay": 0.01,
        "schedule.kind": "linear",
        "schedule.warmup": 24_000,
        "model.dropout": 0.1,
        "objective.kind": "masked",
        "objective.probability": 0.15,
        "tokenizer.kind": "byte-bpe",
    },
    # Clark et al. 2020, sections 2, 3.2 and 3.3, table 6.
    "electra-base": {
        "train.steps": 766_000,
        "train.batch_tokens": 256 * ROW,
        "data.length": ROW,
        "optimizer.lr": 2e-4,
        "optimizer.eps": 1e-6,
        "optimizer.weight_decay": 0.01,
        "schedule.kind": "linear",
        "schedule.warmup": 10_000,
        "model.dropout": 0.1,
        "objective.kind": "replaced-token",
        "objective.probability": 0.15,
        "objective.discriminator_weight": 50,
    },
    # Hoffmann et al. 2022, table 4 and section 4.1.
    "chinchilla-70b": {
        "train.tokens": 1.4e12,
        "train.batch_tokens": 3e6,
        "optimizer.kind": "adamw",
        "optimizer.lr": 1e-4,
        "schedule.kind": "cosine",
        "schedule.final": 0.1,
    },
    # Yang et al. 2019, table 7.
    "xlnet-large": {
        "train.steps": 500_000,
        "train.batch_tokens": 8192 * ROW,
        "data.length": ROW,
        "optimizer.lr": 4e-4,
        "optimizer.eps": 1e-6,
        "optimizer.weight_decay": 0.01,
        "schedule.kind": "linear",
        "schedule.warmup": 40_000,
        "model.dropout": 0.1,
        "objective.kind": "permutation",
        "objective.probability": 1 / 6,
    },
}


@pytest.mark.parametrize("name", PAPERS)
def test_numbers_are_those_of_the_paper(name):
    published = {key: one.value for key, one in RECIPES[name].values.items()}
    for key, value in PAPERS[name].items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert published[key] == pytest.approx(value, rel=2e-3), key
        else:
            assert published[key] == value, key
    unpublished = {"gpt2", "bart-base"}
    assert RECIPES[name].is_complete == (name not in unpublished)


def test_bert_and_gpt3_have_phases():
    [short] = RECIPES["bert-base"].phases
    assert {key: one.value for key, one in short.items()} == {
        "until": 0.9,
        "data.length": 128,
        "train.batch_tokens": 256 * 128,
    }
    # Brown et al. 2020, appendix B: from 32,000 tokens on over the first 4 to 12 billion of 300.
    ramp = RECIPES["gpt3-175b"].phases
    batches = [phase["train.batch_tokens"].value for phase in ramp]
    assert batches == sorted(batches)
    assert batches[0] == pytest.approx(32_000, rel=0.05)
    assert 4 / 300 <= ramp[-1]["until"].value <= 12 / 300 + 1e-9


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_has_a_source_and_every_preset_exists(name):
    recipe = RECIPES[name]
    assert name in presets
    assert not is_own_size(name)
    assert recipe.paper
    for table in (recipe.values, recipe.data, recipe.hardware, *recipe.phases):
        assert all(one.source.strip() for one in table.values())
    assert sum(key in recipe.values for key in ("train.steps", "train.tokens", "train.epochs")) <= 1
    for text in recipe.differences.values():
        assert text.endswith(".")


@pytest.mark.parametrize("name", RECIPES)
def test_tokens_of_presets_are_those_of_their_recipes(name):
    tokens, published = catalogue[name].tokens, RECIPES[name].tokens
    if tokens and published:
        assert tokens == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize("name", COMPLETE)
def test_a_complete_recipe_is_what_a_run_has(name):
    recipe = defaults.complete(load_recipe(name), presets[name])
    same, changed = compare_with_published(recipe, RECIPES[name])
    assert not changed
    assert {"optimizer.lr", "train.batch_tokens", "data.length"} <= set(same)
    for key in same:
        assert recipe.origin_of(key) == RECIPES[name].cite(
            RECIPES[name].phases[0]["until"].source if key == "phases" else
            RECIPES[name].values[key].source
        ) or key == "phases"  # fmt: skip


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in COMPLETE])
def test_a_size_without_a_complete_recipe_says_what_is_missing(name):
    assert RECIPES[name].missing
    try:
        recipe = load_recipe(name)
    except RecipeError as error:
        assert "pretraining objective" in str(error)  # noqa: PT017
        return
    assert recipe.defaults in (None, "fast")
    assert not any(re.search(r"\d{4}, (section|table)", one) for one in recipe._origins.values())


def test_layers_override_each_other_in_order(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[model]\npreset = "bert-base"\n[optimizer]\nlr = 2e-4\neps = 1e-7\n')
    recipe = load_recipe(str(file), ["optimizer.eps=1e-5"])
    assert (recipe.optimizer.lr, recipe.optimizer.eps) == (2e-4, 1e-5)
    origins = {key: recipe.origin_of(f"optimizer.{key}") for key in ("lr", "eps", "weight_decay")}
    assert origins == {
        "lr": str(file),
        "eps": "--set",
        "weight_decay": "Devlin et al. 2018, appendix A.2",
    }
    fast = load_recipe("llama-mini")
    assert fast.origin_of("optimizer.kind") == "fast settings"
    task = load_recipe("bert-base", ["objective.kind=classification"])
    assert task.origin_of("schedule.kind") == "default of classification"
    assert task.optimizer.betas == (0.9, 0.999)
    assert task.defaults is None
    assert task.phases == ()
    assert load_recipe("bert-base", ["defaults=fast"]).optimizer.lr is None


def test_a_runs_recipe_says_where_every_value_of_every_source_comes_from(tmp_path):
    file = tmp_path / "mix.toml"
    file.write_text("""
        model.preset = "bart-tiny"
        [[mix]]
        name = "plain"
        paths = ["plain.txt"]
        objective = { kind = "denoising", probability = 0.2 }
        [[mix]]
        name = "pairs"
        paths = ["pairs.tsv"]
        objective = { kind = "translation" }
    """)
    recipe = load_recipe(str(file), ["optimizer.lr=1e-3"])
    text = format_recipe_file(recipe)
    written = tmp_path / "recipe.toml"
    written.write_text(text)
    assert load_recipe(written) == recipe
    origins = read_origins(text)
    assert {"seed", "mix[0].objective.mean_span", "train.precision"} <= set(origins)
    expected = {
        "model.preset": str(file),
        "optimizer.lr": "--set",
        "optimizer.betas": "default of translation",
        "optimizer.eps": "default",
        "mix[0].paths": str(file),
        "mix[0].objective.probability": str(file),
        "mix[0].objective.mean_span": "default",
        "mix[1].objective.kind": str(file),
        "mix[1].objective.num_beams": "default",
    }
    assert {key: origins[key] for key in expected} == expected


def test_another_budget_keeps_the_shares_of_warm_up_and_phases():
    recipe = load_recipe("bert-base", ["train.steps=2000"])
    assert recipe.schedule.warmup == pytest.approx(0.01)
    assert "10,000 of 1,000,000 steps" in recipe.origin_of("schedule.warmup")
    assert [phase.until for phase in recipe.phases] == [0.9]
    same = load_recipe("bert-base", ["train.steps=1000000"])
    assert same.schedule.warmup == 10_000
    own = load_recipe("bert-base", ["train.steps=2000", "schedule.warmup=7", "data.length=64"])
    assert (own.schedule.warmup, own.phases) == (7, ())
