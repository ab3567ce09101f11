"""Auto presets: the chosen size, its origin in the recipe, and what is refused."""

from __future__ import annotations

import re
import tomllib

import pytest
from run_settings import quiet

from trivium.data.prepare import prepare
from trivium.errors import RecipeError
from trivium.plan import model_size
from trivium.plan.forecast import Forecast
from trivium.plan.model_size import build_sized_recipe, predict_loss
from trivium.presets import auto_presets, presets
from trivium.text import Tokenizer
from trivium.train.recipe_loading import load_recipe, read_origins
from trivium.workflows.training import finetune, pretrain

ORIGIN = "chosen for 0.01 minutes on this machine"


@pytest.fixture
def speeds(monkeypatch):
    """Replace the measured speeds of five sizes: width -> tokens per second. Returns the dict."""
    by_width = {}

    def forecast(trainer, memory):
        speed = by_width.get(trainer.train_step.model.spec.d_model, 1e-3)
        tokens = 60.0 * trainer.recipe.train.minutes * speed
        steps = tokens / trainer.recipe.train.batch_tokens
        return Forecast(speed, tokens, steps, 512, 0.0, 1.0)

    monkeypatch.setattr(model_size, "forecast_run", forecast)
    monkeypatch.setattr(model_size, "_SIZES", model_size._SIZES[:5])
    return by_width


@pytest.mark.parametrize("name", sorted(auto_presets))
def test_the_chosen_values_are_those_of_the_size_with_the_lowest_predicted_loss(name, speeds):
    speeds |= {64: 2000.0, 96: 500_000.0, 128: 1000.0, 192: 10.0}
    recipe = build_sized_recipe({"model": {"preset": name}, "train": {"minutes": 5}})
    base = auto_presets[name]
    width = 192 if name == "bert-auto" else 96  # a narrower BERT learns little in minutes
    assert (recipe.model.preset, recipe.model.d_model) == (base, width)
    assert recipe.model.build_spec().d_model == width
    assert recipe.defaults == "fast"
    assert recipe.tokenizer.vocab_size == 8192
    assert recipe.train.batch_tokens == 8 * width
    origin = "chosen for 5 minutes on this machine"
    for stack in ("encoder", "decoder"):
        changes = getattr(recipe.model, stack)
        assert (changes is not None) == (getattr(presets[base], stack) is not None)
        if changes is not None:
            assert changes["num_layers"] == 4
            assert recipe.origin_of(f"model.{stack}.num_layers") == origin
    for key in ("model.preset", "model.d_model", "train.batch_tokens", "tokenizer.vocab_size"):
        assert recipe.origin_of(key) == origin


def test_a_faster_machine_and_a_longer_budget_get_a_larger_model(speeds):
    def width(minutes, factor):
        speeds.update({size: factor * 8e7 / size**2 for size in (64, 96, 128, 192, 256)})
        tree = {"model": {"preset": "llama-auto"}, "train": {"minutes": minutes}}
        return build_sized_recipe(tree).model.d_model

    assert width(1, 0.5) < width(20, 0.5)
    assert width(1, 0.5) < width(1, 10)


def test_the_users_values_stay(speeds, tmp_path):
    speeds |= {64: 1e5, 96: 1e6}
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The {n} birds sang in tree {n}." for n in range(200)))
    changes = {
        "train": {"minutes": 5, "batch_tokens": 512},
        "tokenizer": {"vocab_size": 300},
        "model": {"decoder": {"num_layers": 3}},
        "data": {"paths": [str(text)]},
    }
    recipe = build_sized_recipe({"model": {"preset": "llama-auto"}}, changes)
    spec = recipe.model.build_spec()
    assert (recipe.train.batch_tokens, recipe.tokenizer.vocab_size) == (512, 300)
    assert spec.decoder.num_layers == 3
    assert recipe.data.paths == (str(text),)
    assert recipe.origin_of("train.batch_tokens") == "--set"


def test_little_text_gets_a_smaller_model(speeds, tmp_path):
    speeds |= dict.fromkeys((64, 96, 128, 192, 256), 1e6)
    text = tmp_path / "text.txt"
    text.write_text("A short text.\n\n" * 2000)
    tree = {"model": {"preset": "llama-auto"}, "train": {"minutes": 20}}
    plenty = build_sized_recipe(tree)
    little = build_sized_recipe({**tree, "data": {"paths": [str(text)]}})
    assert little.model.d_model < plenty.model.d_model


def test_text_that_has_a_tokenizer_keeps_it(speeds, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The {n} birds sang in tree {n}." for n in range(200)))
    tokenizer = Tokenizer.train("byte-bpe", text, vocab_size=300, progress=False)
    tokenizer.save(tmp_path / "tokenizer")
    prepare([str(text)], tokenizer, tmp_path / "shards")
    tree = {"model": {"preset": "llama-auto"}, "train": {"minutes": 5}}
    shards = build_sized_recipe({**tree, "data": {"paths": [str(tmp_path / "shards")]}})
    assert shards.model.d_model is not None
    assert not shards.origin_of("tokenizer.vocab_size")
    path = {"path": str(tmp_path / "tokenizer")}
    own = build_sized_recipe({**tree, "tokenizer": path, "data": {"paths": [str(text)]}})
    assert own.tokenizer.path == path["path"]


def test_a_size_that_does_not_fit_in_memory_is_not_chosen(speeds, monkeypatch):
    speeds |= dict.fromkeys((64, 96, 128, 192, 256), 1e9)
    build = model_size.build_trainer_without_data

    def build_small(recipe):
        if recipe.model.d_model > 128:
            raise RecipeError("the model does not fit")
        return build(recipe)

    monkeypatch.setattr(model_size, "build_trainer_without_data", build_small)
    tree = {"model": {"preset": "llama-auto"}, "train": {"minutes": 5}}
    assert build_sized_recipe(tree).model.d_model == 128


def test_the_predicted_loss_falls_with_the_weights_and_with_the_steps():
    losses = [predict_loss(weights, 500) for weights in (1e5, 1e6, 1e7)]
    assert losses == sorted(losses, reverse=True)
    losses = [predict_loss(1e6, steps) for steps in (0, 10, 100, 1000)]
    assert losses[0] > losses[2] > losses[3]


def test_a_run_has_the_numbers_in_its_recipe_and_can_be_resumed(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The {n} birds sang in tree {n}." for n in range(400)))
    data, out = str(text), tmp_path / "run"
    changes = {"train": {"minutes": 0.01, "device": "cpu"}, "tokenizer": {"vocab_size": 300}}
    run = pretrain("llama-auto", data=data, out=out, changes=changes, console=quiet())
    written = run.recipe.read_text()
    tree, origins = tomllib.loads(written), read_origins(written)
    assert tree["model"]["preset"] == "llama-mini"
    assert origins["model.d_model"] == origins["model.preset"] == ORIGIN
    assert tree["train"]["batch_tokens"] == 8 * tree["model"]["d_model"]
    longer = {"train.minutes": 0.02}
    resumed = pretrain("", out=out, resume=True, changes=longer, console=quiet())
    assert tomllib.loads(resumed.recipe.read_text())["model"] == tree["model"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "for a budget in minutes: set one"),
        ({"train": {"steps": 100}}, "for a budget in minutes: set one"),
        ({"train": {"minutes": 1}, "objective": {"kind": "classification"}}, "labelled examples"),
        ({"train": {"minutes": 1}, "mix": [{"paths": ["a"]}, {"paths": ["b"]}]}, "several sources"),
    ],
)
def test_what_has_no_size_for_a_budget_is_refused(tree, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        build_sized_recipe({"model": {"preset": "llama-auto"}, **tree})


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="measures the speed of one process"):
        build_sized_recipe({"model": {"preset": "llama-auto"}, "train": {"minutes": 1}})


def test_other_uses_of_the_name_say_what_to_do(tmp_path):
    with pytest.raises(RecipeError, match="chooses the size of the model for a training run"):
        load_recipe("llama-auto")
    with pytest.raises(RecipeError, match="has labelled examples: choose a size"):
        finetune("classification", model="llama-auto", data="x.jsonl", out=tmp_path / "run")
