"""Configuration: every mistake is named with the nearest key; recipes merge, complete and print."""

from __future__ import annotations

import copy

import pytest
import torch
from pydantic import ValidationError

from trivium.config import iter_keys
from trivium.errors import RecipeError
from trivium.objectives.causal import is_causal
from trivium.presets import presets
from trivium.spec import ALiBi, Sinusoidal, Spec
from trivium.train import defaults
from trivium.train.model_config import ModelConfig
from trivium.train.optimizers.adamw import AdamW
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import build_recipe, builtin_recipes, load_recipe
from trivium.train.schedules import Cosine, Linear
from trivium.train.train_config import TrainConfig


def error_of(tree, *changes) -> str:
    with pytest.raises(RecipeError) as caught:
        build_recipe(tree, changes)
    return str(caught.value)


@pytest.mark.parametrize("name", ["bert-small", "gpt2", "t5-mini", "elmo-mini", "electra-mini"])
def test_a_preset_becomes_a_complete_recipe_and_its_toml_reads_back(name, tmp_path):
    recipe = defaults.complete(load_recipe(name), presets[name])
    file = tmp_path / f"{name}.toml"
    file.write_text(recipe.to_toml())
    assert load_recipe(file) == recipe
    assert recipe.train.budget == ("steps", 2000)
    assert recipe.optimizer.lr is not None
    assert recipe.schedule.warmup == 100


def test_defaults_of_t5():
    assert load_recipe("t5-mini").optimizer.kind == "muon"
    assert len(load_recipe("t5-mini").tokenizer.special_tokens) == 105  # type: ignore


def test_changes_as_texts_and_as_a_dict_do_the_same():
    texts = ["train.minutes=2", "objective.probability=0.2", "optimizer.lr=1e-3", "seed=3"]
    tree = {
        "train": {"minutes": 2},
        "objective": {"probability": 0.2},
        "optimizer": {"lr": 1e-3},
        "seed": 3,
    }
    one, other = load_recipe("bert-mini", texts), load_recipe("bert-mini", tree)
    assert one == other
    dotted = {"train.minutes": 2, "objective.probability": 0.2, "optimizer.lr": 1e-3, "seed": 3}
    assert load_recipe("bert-mini", dotted) == one
    assert one.train.budget == ("minutes", 2.0)
    assert one.objective.probability == 0.2  # type: ignore[union-attr]
    # A new budget and another kind replace what was there, in either form.
    again = load_recipe(one, ["train.steps=5", "optimizer.kind=muon", "schedule.kind=cosine"])
    assert again.train.budget == ("steps", 5)
    assert (again.optimizer.kind, again.optimizer.lr) == ("muon", None)
    assert load_recipe(one, {"train": {"steps": 5}}).train.budget == ("steps", 5)


def test_a_short_budget_in_minutes_has_a_small_tokenizer_sample():
    def sample_bytes(*changes):
        return load_recipe("t5-mini", changes).tokenizer.sample_bytes  # type: ignore[union-attr]

    assert sample_bytes() == sample_bytes("train.minutes=600") == 30_000_000
    assert sample_bytes("train.minutes=2") == 1_500_000  # which take 12 s of them
    assert sample_bytes("train.minutes=0.1") == 750_000
    bpe = ("train.minutes=2", "tokenizer.kind=bpe")
    assert sample_bytes(*bpe) == 10_000_000
    assert sample_bytes("train.minutes=2", "tokenizer.sample_bytes=7") == 7


def test_sources_replace_the_one_objective_and_the_other_way_round():
    mix = [
        {"name": "a", "paths": "a.txt", "objective": {"kind": "span-corruption"}},
        {"name": "b", "paths": ["b.tsv"], "objective": {"kind": "translation"}},
    ]
    recipe = load_recipe("t5-mini", {"mix": mix})
    assert [source.name for source in recipe.sources] == ["a", "b"]
    unnamed = {"mix": [{"paths": ["a.txt"]}, {"paths": ["b.txt"]}]}
    given = copy.deepcopy(unnamed)
    load_recipe("gpt2-mini", unnamed)
    assert unnamed == given  # names and objectives are those of one recipe
    assert recipe.sources[0].validation == 0.1
    assert recipe.labelled
    assert recipe.tokenizer.kind == "unigram"  # type: ignore[union-attr]
    assert recipe.optimizer.betas == (0.9, 0.999)
    back = load_recipe(recipe, ["data.paths=c.txt", "objective.kind=denoising"])
    assert (back.mix, back.data.paths) == ((), ("c.txt",))
    with pytest.raises(RecipeError, match=r"data.paths.*expected a list"):
        load_recipe(back, ["data.paths.x=1"])
    assert "same name" in error_of({"model": {"preset": "t5-mini"}, "mix": [mix[0], mix[0]]})
    corpora = [{"paths": ["wiki/"]}, {"paths": "other/wiki/"}, {"paths": ["hf:code"]}]
    plain = load_recipe("gpt2-mini", {"mix": corpora})
    assert [source.name for source in plain.sources] == ["wiki", "wiki-2", "code"]
    assert {objective.kind for objective in plain.objectives} == {"causal"}
    named = [{**mix[0], "name": "loss"}]
    assert "which metrics have" in error_of({"model": {"preset": "t5-mini"}, "mix": named})
    weighed = [{**mix[0], "weight": 1.0}, mix[1]]
    assert "weight of every source" in error_of({"model": {"preset": "t5-mini"}, "mix": weighed})


def test_sizes_of_our_own_train_as_learns_fastest_and_those_of_papers_as_published():
    def chosen(name, *changes):
        recipe = load_recipe(name, changes)
        share = getattr(recipe.objective, "probability", None)
        return recipe.model.initialization, recipe.optimizer.kind, share

    published, fast = ("published", "adamw", 0.15), ("fast", "adamw", 0.3)
    assert chosen("modernbert-mini") == chosen("bert-mini", "defaults=fast") == fast
    assert chosen("roberta-base") == chosen("modernbert-mini", "defaults=published") == published
    assert chosen("llama-mini") == chosen("gpt2") == ("published", "muon", None)
    assert chosen("llama-7b") == ("published", "adamw", None)
    # Turc et al. 2019 leave the learning rate and the batch open.
    assert chosen("bert-mini") == fast
    assert chosen("t5-mini") == ("fast", "muon", 0.15)
    assert chosen("t5-small") == ("published", "adafactor", 0.15)
    # What is set wins, and a changed part may leave no fast initialization.
    set_all = ("model.initialization=published", "objective.probability=0.2", "optimizer.kind=muon")
    assert chosen("modernbert-mini", *set_all) == ("published", "muon", 0.2)
    alibi = [
        f"model.{side}.layers.mixer.positions={{kind='alibi'}}" for side in ("encoder", "decoder")
    ]
    assert chosen("t5-mini", *alibi, "objective.kind=span-corruption") == (
        "published",
        "muon",
        0.15,
    )
    # Labelled examples and models without a faster way are as they were.
    labelled = load_recipe("llama-mini", ["objective.kind=classification"])
    assert (labelled.defaults, labelled.optimizer.kind) == (None, "adamw")
    assert load_recipe("lstm-mini").defaults is None
    assert 'defaults = "fast" is for' in error_of(
        {"model": {"preset": "lstm-mini"}}, "defaults=fast"
    )


def test_sizes_whose_papers_say_all_of_it_train_with_their_numbers():
    """Touvron et al. 2023, table 2 and section 2.3; Brown et al. 2020, table 2.1, appendix B."""
    llama = load_recipe("llama-65b")
    assert llama.optimizer == AdamW(lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.1)
    assert llama.schedule == Cosine(warmup=2000, final=0.1)
    train = llama.train
    assert (train.batch_tokens, train.tokens, train.clip) == (4_000_000, 1.4e12, 1.0)
    assert llama.data.length == 2048
    assert load_recipe("llama2-7b").optimizer.eps == 1e-5
    gpt3 = load_recipe("gpt3-175b")
    assert (gpt3.optimizer.lr, gpt3.train.batch_tokens) == (0.6e-4, 3_200_000)
    assert gpt3.schedule.warmup * gpt3.train.tokens == 375e6
    # What is set wins; a table of another kind is its own, and sizes of our own are.
    changes = ["optimizer.lr=1e-3", "train.steps=5", "schedule.kind=linear", "data.length=128"]
    changed = load_recipe("llama-7b", changes)
    assert changed.optimizer == AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    assert (changed.schedule, changed.data.length) == (Linear(), 128)
    assert (changed.train.steps, changed.train.tokens) == (5, None)
    for name, *more in (("llama1-mini",), ("llama-7b", "defaults=fast"), ("gpt2-xl",)):
        free = load_recipe(name, more)
        assert (free.optimizer.lr, free.train.budget) == (None, None), name
    labelled = load_recipe("llama-7b", ["objective.kind=classification"])
    assert labelled.train.batch_tokens is None


def test_parts_of_a_preset_can_be_changed():
    recipe = load_recipe("gpt2-mini", ["model.decoder.num_layers=3", "model.d_model=64"])
    spec = recipe.model.build_spec()
    assert spec is not None
    assert spec.decoder.num_layers == 3  # type: ignore[union-attr]
    assert spec.d_model == 64  # type: ignore[union-attr]
    fast = load_recipe("bert-mini", ["model.initialization=fast"]).model.build_spec()
    assert fast != presets["bert-mini"]
    for preset in ("gpt2-mini", "elmo-mini"):
        model = {"preset": preset, "initialization": "fast"}
        assert 'initialization = "fast" is' in error_of({"model": model})
    assert load_recipe("lstm-mini", ["model.cell=gru"]).model.build_spec().cell == "gru"
    assert 'expected "elman", "elman-relu", "elman-logistic", "lstm"' in error_of(
        {"model": {"preset": "lstm-mini"}}, "model.cell=gruu"
    )
    described = {"model": {"spec": presets["gpt2-mini"].to_dict()}}
    assert build_recipe(described).model.build_spec() == presets["gpt2-mini"]
    assert Spec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize("preset", ["gpt2-mini", "gpt3-mini"])
def test_a_change_of_attention_holds_for_all_layers_and_replaces_positions(preset):
    """Also where layers differ; learned positions do not stay beside relative ones."""
    alibi = "model.decoder.layers.mixer.positions.kind=alibi"
    changed = load_recipe(preset, [alibi]).model.build_spec()
    assert {each.positions for each in changed.decoder.attentions} == {ALiBi()}
    patterns = [each.pattern for each in presets[preset].decoder.attentions]
    assert [each.pattern for each in changed.decoder.attentions] == patterns
    assert changed.embedding.positions is None
    message = error_of(
        {"model": {"preset": preset}}, "model.decoder.layers.mixer.pattern.kind=sparse"
    )
    assert 'pattern: there is no kind "sparse"; allowed: "fixed", ' in message


def test_one_change_of_positions_may_follow_another():
    """Also where layers differ; learned positions do not stay beside relative ones."""
    alibi = "model.decoder.layers.mixer.positions.kind=alibi"
    both = ["model.embedding.positions.kind=sinusoidal", alibi]
    assert load_recipe("gpt2-mini", both).model.build_spec().embedding.positions == Sinusoidal()


def test_objectives_that_do_not_fit_the_other_tables_are_refused():
    t5, bert = {"model": {"preset": "t5-mini"}}, {"model": {"preset": "bert-mini"}}
    message = error_of(t5, "data.separate_documents=true")
    assert "separate_documents has no effect" in message
    assert 'data.packing = "truncate"' in message
    assert load_recipe("bert-mini", ["data.separate_documents=true"]).data.separate_documents
    specials = ["<pad>", "</s>", "<unk>", "<s>", "<mine>"]
    message = error_of({**t5, "tokenizer": {"special_tokens": specials}})
    assert "needs the special token <extra_id_0>" in message
    assert "leave tokenizer.kind and tokenizer.special_tokens out" in message
    without_mask = {"kind": "byte-bpe", "special_tokens": ["<|endoftext|>"]}
    assert "[MASK]" in error_of({**bert, "tokenizer": without_mask})
    chosen = build_recipe({**bert, "tokenizer": {"kind": "byte-bpe"}}).tokenizer
    assert chosen.special_tokens == ("<|endoftext|>", "[MASK]")  # type: ignore
    sentinels = [f"<extra_id_{n}>" for n in range(3)]
    build_recipe({**t5, "tokenizer": {"special_tokens": [*specials, *sentinels]}})


def test_keys_that_have_no_effect_are_refused():
    labelled = {"model": {"preset": "bert-mini"}, "objective": {"kind": "tagging"}}
    message = (
        "batch_tokens is for text, but this run has labelled examples only: set train.batch_ex"
    )
    assert message in error_of(labelled, "train.batch_tokens=512")
    assert "data.separator is for text" in error_of(labelled, "data.separator=line")
    text = {"model": {"preset": "bert-mini"}}
    assert "labelled examples, but this run has text only: leave it out" in error_of(
        text, "train.average=3"
    )
    assert "leave keep_best out" in error_of(text, "train.patience=3", "train.keep_best=false")


def test_a_recipe_has_the_keys_of_its_own_objective_only():
    """Fault 39: a causal one had lowercase, mask_share and mean_span."""
    recipe = load_recipe("gpt2-mini").to_tree()
    assert set(recipe["objective"]) == {"kind", "carry_state"}
    assert "lowercase" not in recipe["tokenizer"]
    assert "mask_share" in load_recipe("bert-mini").to_tree()["objective"]


def test_what_is_replaced_is_checked():
    recipe = load_recipe("bert-mini")
    assert recipe.replace(seed=3).seed == 3
    for values in ({"seed": "x"}, {"sede": 3}):
        with pytest.raises(ValidationError):
            recipe.replace(**values)
    with pytest.raises(ValidationError):
        recipe.data.replace(keep_duplicates="perhaps")


def test_mistakes_name_the_key_and_the_nearest_one():
    model = {"model": {"preset": "bert-mini"}}
    for change, message in (
        ("objective.probabilty=0.2", 'unknown key "objective.probabilty". Did you mean objective.'),
        (
            "objective.mean_span=2",
            'objective.mean_span is a key of objective.kind = "blank-filling", ',
        ),
        ("objective.mean_span=2", 'and this is "masked": leave it out'),
        ("train.minuts=2", 'unknown key "train.minuts". Did you mean train.minutes?'),
        ("minutes=2", 'unknown key "minutes". Did you mean train.minutes?'),
        ("train.lr=2", 'unknown key "train.lr". Did you mean optimizer.lr?'),
        ("train.learning_rate=2", "Did you mean optimizer.lr?"),
        ("d_model=64", 'unknown key "d_model". Did you mean model.d_model?'),
        ("model.vocab_size=64", "Did you mean tokenizer.vocab_size?"),
        ("task.text_field=x", 'unknown key "task.text_field". Did you mean data.text_field?'),
        ("train.minutes=two", 'train.minutes = "two": expected a number.'),
        ("train.steps=1.5", "train.steps = 1.5: expected a whole number."),
        ("train.compile=maybe", 'train.compile = "maybe": expected true or false.'),
        ("data.validation={}", "data.validation = {}: expected a number or a list."),
        ("data.packing=no", 'data.packing = "no": expected "pack" or "truncate".'),
        ("model.encoder.num_layer=3", "model.encoder.num_layer: there is no such field. Did you"),
        ("model.encoder.num_layers=x", "model.encoder.num_layers: expected a whole number, not"),
        ("model.encoder.layers.feed_forward.act=relu", 'Did you mean "activation"?'),
        ("optimizer=muon", "optimizer is a section with keys of its own, not 'muon'"),
        ("optimizer=muon", "such as optimizer.kind=muon"),
        ("mix=[{name=a}]", "not valid TOML"),
    ):
        assert message in error_of(model, change), (change, error_of(model, change))
        assert "Input should be" not in error_of(model, change)
    foreign = {"objective": {"kind": "classification"}, **model}
    assert "Did you mean data.text_field or objective.text" in error_of(foreign, "text_field=x")
    assert 'objective.kind = "maskd" is not one of' in error_of(model, "objective.kind=maskd")
    assert 'Did you mean "masked"?' in error_of(model, "objective.kind=maskd")
    assert 'train.log_every = "often": expected' in error_of(model, "train.log_every=often")
    assert "optimizer.lr = -1: expected a number greater than 0" in error_of(
        model, "optimizer.lr=-1"
    )
    assert "exactly one" in error_of(model, "train.steps=2", "train.minutes=1")
    assert "--set takes key=value" in error_of(model, "train.steps")
    assert "train has a value" in error_of(model, "train=1", "train.steps=1")
    assert "train is a section with keys of its own, not 1" in error_of(model, "train=1")
    assert "objective is a section with keys of its own, not 3" in error_of(
        {**model, "objective": 3}
    )
    assert "mix[0] is a section with keys" in error_of({**model, "mix": ["a.txt"]})
    assert "exactly one of preset" in error_of({})
    several = error_of(model, "train.stepps=1", "data.lenght=2", "model.size=3")
    assert several.count("\n  unknown key") == 3  # all mistakes at once
    assert '"mix[0].paths" is missing' in error_of(
        {**model, "mix": [{"name": "a", "objective": {"kind": "masked"}}]}
    )
    with pytest.raises(RecipeError, match=r'Did you mean "bert-mini"\?'):
        load_recipe("bert-min")
    with pytest.raises(RecipeError, match="no such recipe file"):
        load_recipe("nowhere.toml")
    with pytest.raises(RecipeError, match="a list such as"):
        load_recipe("bert-mini", "train.steps=1")  # type: ignore[arg-type]


def test_bad_toml_is_named(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text("[model\n")
    with pytest.raises(RecipeError, match="not valid TOML"):
        load_recipe(file)


def test_every_key_has_a_description_and_shipped_recipes_parse():
    keys = list(iter_keys(Recipe))
    names = {(key.name, key.kind) for key in keys}
    assert ("objective.probability", "masked") in names
    assert ("optimizer.matrix_lr", "muon") in names
    assert ("mix.objective.mean_span", "denoising") in names
    bare = {key.name for key in keys if not key.description and key.name.split(".")[-1] != "kind"}
    assert {name for name in bare if name.startswith(("train", "data", "optimizer"))} <= {
        "train.log_every"
    }
    for name in builtin_recipes():
        assert load_recipe(name).objectives


def test_learning_rates_follow_the_published_tables():
    assert defaults.pretraining_learning_rate(presets["gpt2-mini"]) == pytest.approx(2e-3)
    assert defaults.pretraining_learning_rate(presets["llama-7b"]) == pytest.approx(
        2.5e-4, rel=0.01
    )
    bert = presets["bert-base"]
    assert defaults.finetuning_learning_rate(bert, new_weights=False, adapted=False) == 5e-5
    assert (
        defaults.finetuning_learning_rate(bert, new_weights=False, adapted=True) < 10 * 5e-5 + 1e-9
    )
    assert defaults.choose_batch_tokens(presets["gpt2-mini"], 128) == 2048
    assert defaults.vocabulary_size(presets["gpt2"], 10_000_000) == 8192
    assert defaults.vocabulary_size(presets["gpt2"], 10**10) == 32_768


@pytest.mark.parametrize(
    "preset",
    [
        name
        for name, spec in presets.items()
        if (is_causal(spec) or spec.family == "encoder-decoder") and not spec.counts
    ],
)
@pytest.mark.parametrize("origin", ["new", "trained"])
def test_the_rate_of_kto_is_recommended_at_every_width(preset, origin):
    """trl's documentation: between 5e-7 and 5e-6."""
    tree = {"model": {"preset": preset}, "objective": {"kind": "kto"}, "data": {"paths": ["a"]}}
    recipe = build_recipe(tree)
    if origin == "trained":
        recipe = recipe.replace(model=ModelConfig(init_from="a"))
    rate = defaults.complete(recipe, presets[preset], num_examples=64).optimizer.lr
    assert 5e-7 <= rate <= 5e-6


@pytest.mark.parametrize(
    ("preset", "kind", "changes", "expected"),
    [
        ("llama-mini", "causal", [], (True, 0.0)),
        ("llama-mini", "causal", ["defaults=published"], (False, 0.0)),
        ("gpt2", "causal", [], (False, 0.0)),
        ("bert-mini", "masked", [], (False, 0.0)),
        ("marian-mini", "translation", [], (True, 0.0)),
        ("marian-mini", "translation", ["model.dropout=0.3"], (True, 0.3)),
        ("marian-mini", "translation", ["optimizer.weight_decay=0.1"], (False, 0.1)),
        ("marian-mini", "translation", ["optimizer.layer_decay=0.9"], (False, 0.1)),
        ("transformer-base", "translation", [], (False, 0.1)),
        ("bahdanau-mini", "translation", [], (False, 0.1)),
        ("lstm-mini", "causal", [], (False, 0.0)),
        ("bert-mini", "classification", [], (False, 0.1)),
    ],
)
def test_small_new_models_decay_by_passes_in_place_of_dropout(preset, kind, changes, expected):
    tree = {"model": {"preset": preset}, "objective": {"kind": kind}, "data": {"paths": ["x.txt"]}}
    recipe = build_recipe(tree, changes)
    assert (defaults.decays_over_epochs(recipe), defaults.dropout(recipe)) == expected


@pytest.mark.parametrize(
    ("model", "objective", "changes", "expected"),
    [
        ("marian-mini", "translation", {}, "fast"),
        ("bart-mini", "summarization", {}, "fast"),
        ("t5-mini", "translation", {}, "published"),
        ("bart-mini", "classification", {}, "published"),
        ("marian-opus-mt", "translation", {}, "published"),
        ("marian-mini", "translation", {"defaults": "published"}, "published"),
        ("t5-mini", "span-corruption", {}, "fast"),
    ],
)
def test_new_translators_of_our_sizes_start_fast(model, objective, changes, expected):
    recipe = load_recipe(model, {"objective.kind": objective, **changes})
    assert recipe.model.initialization == expected


def test_a_key_of_layers_is_set_in_every_layer_whose_part_has_it():
    """Of a model that mixes attention with Mamba, of experts after dense layers, of all layers."""
    changes = ["model.decoder.layers.mixer.num_heads=8", "model.decoder.layers.mixer.head_dim=32"]
    changes += ["model.decoder.layers.mixer.d_state=4", "model.decoder.layers.norm.eps=0.5"]
    decoder = load_recipe("jamba-mini", changes).model.build_spec().decoder
    heads = {getattr(mixer, "num_heads", None) for mixer in decoder.mixers}
    states = {getattr(mixer, "d_state", None) for mixer in decoder.mixers}
    assert (heads, states) == ({8, None}, {4, None})
    assert {layer.norm.eps for layer in decoder.every_layer} == {0.5}
    assert "num_headz: there is no such field" in error_of(
        {"model": {"preset": "jamba-mini"}}, "model.decoder.layers.mixer.num_headz=8"
    )
    layers = presets["gpt2-tiny"].to_dict()["decoder"]["layers"]
    model = {"preset": "gpt2-tiny", "decoder": {"first_layers": layers, "num_layers": 3}}
    tree = {"model": model}
    recipe = load_recipe(tree, ["model.decoder.first_layers.feed_forward.d_ff=24"])
    widths = [layer.feed_forward.d_ff for layer in recipe.model.build_spec().decoder.every_layer]
    assert widths == [24, 512, 512]


def test_flex_attention_needs_a_gpu_and_compiled_blocks():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert not TrainConfig(steps=1).uses_flex(cpu)
    assert TrainConfig(steps=1, attention="flex").uses_flex(gpu)
    for config, device in (
        (TrainConfig(steps=1, attention="flex"), cpu),
        (TrainConfig(steps=1, attention="flex", compile=True), cpu),
        (TrainConfig(steps=1, attention="flex", compile=False), gpu),
    ):
        with pytest.raises(RecipeError, match=r'train.attention = "flex" needs a GPU'):
            config.uses_flex(device)
