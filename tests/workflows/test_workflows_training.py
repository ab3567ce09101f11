"""Whole runs: every form of model and data, what they write, and what is refused first."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
import shlex
import shutil
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from double import FLOAT32, relative_error
from run_settings import quiet, settings
from safetensors.torch import load_file
from small_models import SPECS

import trivium
from trivium import load, spec
from trivium.cli import main
from trivium.data.samples import easy_text_paths
from trivium.data.shards import TRAIN
from trivium.errors import DataError, RecipeError, TriviumError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.objectives.example_split import ExampleTable
from trivium.report import read_run, summarize
from trivium.spec import TransformerSpec
from trivium.stored_model import open_model
from trivium.train import defaults, hardware, memory
from trivium.train.recipe_loading import open_base_model
from trivium.workflows import quickstart as quickstart_module
from trivium.workflows import training
from trivium.workflows.corpus import Corpus, ExampleSource
from trivium.workflows.model_setup import match_weights
from trivium.workflows.quickstart import quickstart
from trivium.workflows.training import finetune, pretrain

SHORT = {"steps": 2, "log_every": 1, "eval_every": 2, "eval_tokens": 64}


def test_a_run_folder_has_everything_and_loads(encoder):
    names = {path.name for path in encoder.path.iterdir()}
    assert names >= {
        "recipe.toml", "spec.json", "tokenizer.json", "metrics.jsonl", "run.json", "report.html",
        "model.safetensors", "checksums.json", "checkpoints", "shards",
    }  # fmt: skip
    metadata = encoder.read_metadata()
    assert metadata["objectives"] == ["masked"]
    assert metadata["samples"]
    records = encoder.read_metrics()
    assert [list(r)[:3] for r in records] == [["step", "tokens", "seconds"]] * len(records)
    assert records[-1]["valid_loss"] < records[0]["train_loss"]
    lm = trivium.load(encoder.path)
    assert lm.fill_mask("the cat [MASK] on a mat", top_k=3)[0].score > 0
    assert oct(encoder.weights.stat().st_mode)[-3:] in ("644", "664", "600", "640")


CASES = {
    "gpt2-tiny": {},
    "t5-tiny": {"model": {"initialization": "fast"}},
    "electra-tiny": {"adapter": {"rank": 2}},
    "elmo-tiny": {},
    "ngram-tiny": {},
    "albert-tiny": {"objective": {"kind": "sentence-pairs", "pairs": "order"}},
    "bert-tiny": {"data": {"packing": "truncate", "length": 32}},
    "llama-tiny": {"data": {"separate_documents": True, "length": 32}},
}


@pytest.mark.parametrize(("preset", "more"), CASES.items(), ids=CASES)
def test_every_form_of_pretraining_runs_and_its_model_is_used(preset, more, text, tmp_path):
    changes = settings(**SHORT)
    for section, keys in more.items():
        changes[section] = {**changes.get(section, {}), **keys}
    out = tmp_path / preset
    run = pretrain(preset, data=text, out=out, changes=changes, console=quiet())
    lm = trivium.load(run.path)
    last = run.read_metrics()[-1]
    assert math.isfinite(last["valid_loss"])
    if preset == "electra-tiny":
        assert {"valid_generator", "valid_discriminator"} <= set(last)
        assert trivium.load(run.path / "generator").fill_mask("the [MASK] sat")
    elif "generate" in lm.capabilities:
        assert isinstance(lm.generate("the cat", max_new_tokens=3), str)


def test_positions_do_not_count_the_padding_of_the_runs_own_tokenizer(text, tmp_path):
    """RoBERTa's padding is 1 in its own vocabulary; that of a new one is 0, and 1 is [UNK]."""
    changes = settings(**SHORT)
    run = pretrain("roberta-tiny", data=text, out=tmp_path, changes=changes, console=quiet())
    lm = trivium.load(run.path)
    tokenizer = lm.text_tokenizer
    before, after = tokenizer.encode_ids_batch(["the cat", "sat"])
    ids = [*before, tokenizer.unk_id, *after]
    logits = lm.logits([ids])
    counted = lm.logits([ids], position_ids=[[*range(len(ids))]])
    assert relative_error(logits, counted) < FLOAT32
    padded = lm.logits([[tokenizer.pad_id] * 3 + ids], attention_mask=[[0] * 3 + [1] * len(ids)])
    assert relative_error(padded[:, 3:], logits) < FLOAT32


def test_training_continues_from_weights_and_from_shards(encoder, text, tmp_path):
    changes = {"train": SHORT, "data": {"length": 16}}
    again = pretrain(encoder.path, data=text, out=tmp_path / "a", changes=changes, console=quiet())
    # Trained weights: the first loss is near the last one of the run before.
    first, before = again.read_metrics()[0]["train_loss"], encoder.read_metrics()[-1]["valid_loss"]
    assert abs(first - before) < 0.5
    assert again.tokenizer.read_bytes() == encoder.tokenizer.read_bytes()
    lengths = [load(run.path).trained_length for run in (encoder, again)]
    assert lengths == [32, 32]  # it can read still what it has learned to read
    shards, of_shards = encoder.path / "shards", settings(**SHORT)
    del of_shards["tokenizer"]
    run = pretrain("bert-tiny", data=shards, out=tmp_path / "b", changes=of_shards, console=quiet())
    assert not run.shards.exists()
    other = tmp_path / "other.txt"
    other.write_text("something else entirely\n\n" * 20)
    gpt = pretrain("gpt2-tiny", data=text, out=tmp_path / "c", changes=settings(**SHORT),
                   console=quiet())  # fmt: skip
    with pytest.raises(RecipeError, match="another tokenizer"):
        pretrain(gpt.path, data=shards, out=tmp_path / "d", changes=changes, console=quiet())


def test_the_recipe_of_a_run_has_what_was_chosen_for_it(text, tmp_path, monkeypatch):
    monkeypatch.setattr(defaults, "vocabulary_size", lambda spec, num_bytes: 307)
    changes = settings(**SHORT)
    del changes["tokenizer"], changes["train"]["micro_batch_tokens"]
    run = pretrain("bert-tiny", data=text, out=tmp_path, changes=changes, console=quiet())
    assert "vocab_size = 307" in run.recipe.read_text()
    assert run.read_metadata()["vocab_size"] <= 307
    assert "micro_batch_tokens" not in run.recipe.read_text()
    assert run.read_metadata()["micro_batch_tokens"] == 224
    # Dropout depends on the micro-batch: a resumed run has the same, whatever memory is free then.
    monkeypatch.setattr(memory, "_CPU_TOKENS", 64)
    pretrain("", out=run.path, resume=True, changes=["train.steps=3"], console=quiet())


def test_weights_that_do_not_fit_are_refused_before_anything_is_done(text, tmp_path, monkeypatch):
    """On a CPU the system would end the process."""
    monkeypatch.setattr(hardware, "available_memory", lambda device: 2**20)
    out = tmp_path / "run"
    with pytest.raises(RecipeError, match=r"alone take .* GiB, and 0\.0 GiB are free on cpu"):
        pretrain("bert-tiny", data=text, out=out, changes=["train.device=cpu"], console=quiet())
    assert not out.exists()


def test_blocks_that_are_computed_twice_carry_no_state(text, tmp_path):
    changes = ["objective.carry_state=true", "parallel.activation_checkpointing=true"]
    out = tmp_path / "run"
    with pytest.raises(RecipeError, match="would extend their state twice"):
        pretrain("transformer-xl-tiny", data=text, out=out, changes=changes, console=quiet())
    assert not out.exists()


def test_an_optimizer_that_does_not_fit_is_refused_whatever_the_micro_batch(
    encoder, reviews, tmp_path, monkeypatch
):
    """It needs memory for the trained weights alone."""
    monkeypatch.setattr(memory, "available_memory", lambda device: 2**21)
    train = {"steps": 2, "eval_every": 2, "device": "cpu", "micro_batch_tokens": 64}
    for rank, folder in ((0, "full"), (2, "adapted")):
        changes = {"train": train, "adapter": {"rank": rank}}
        arguments = {"model": encoder.path, "data": reviews, "out": tmp_path / folder}
        error = pytest.raises(RecipeError, match="GiB for weights, gradients, optimizer")
        with contextlib.nullcontext() if rank else error:
            finetune("classification", **arguments, changes=changes, console=quiet())


def test_an_adapter_has_the_names_of_the_family_that_its_base_was_imported_as(
    encoder, reviews, tmp_path
):
    """LLaMA can express a Phi-3, whose QKV is one matrix; a run that starts from an adapter."""
    tokenizer = trivium.load(encoder.path).tokenizer
    described = SPECS["llama"].replace(vocab_size=tokenizer.vocab_size, d_model=30)
    described = described.replace(heads=(spec.LMHead(tied=False),))
    imported = Settings(config={"model_type": "phi3"})
    LanguageModel(described, build(described, seed=0), tokenizer, imported).save(tmp_path / "base")
    run = finetune(
        "classification",
        model=tmp_path / "base",
        data=reviews,
        out=tmp_path / "run",
        changes={
            "train": {"steps": 2, "device": "cpu"},
            "adapter": {"rank": 2, "save_separately": True},
        },
        console=quiet(),
    )
    names = load_file(run.path / "adapter" / "adapter_model.safetensors")
    assert "base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight" in names
    again = finetune(
        "classification",
        model=run.path / "adapter",
        data=reviews,
        out=tmp_path / "again",
        changes={"train": {"steps": 1, "device": "cpu"}, "optimizer": {"lr": 1e-9}},
        console=quiet(),
    )
    texts = ["the good cat", "a bad dog"]
    first, second = (trivium.load(each.path).classify(texts) for each in (run, again))
    for one, other in zip(first, second, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


@pytest.mark.filterwarnings("ignore:a text ends at its limit")  # after three steps
def test_fine_tuning_a_preset_an_adapter_and_two_vocabularies(
    encoder, reviews, tmp_path, monkeypatch
):
    monkeypatch.setattr(defaults, "_GENERATED_EXAMPLES", 2)
    train = {"steps": 3, "eval_every": 3, "device": "cpu"}
    console = quiet()
    adapted = finetune(
        "classification", model=encoder.path, data=reviews, out=tmp_path / "lora",
        changes={"train": train, "adapter": {"rank": 2, "save_separately": True}}, console=console,
    )  # fmt: skip
    new = f"weights    from {encoder.path}; the head classifier is newly initialized"
    assert new in console.file.getvalue()  # type: ignore[attr-defined]
    assert {*adapted.read_metadata()["unknown_shares"]} == {"texts"}  # its labels are no tokens
    names = load_file(adapted.path / "adapter" / "adapter_model.safetensors")
    query = "base_model.model.bert.encoder.layer.1.attention.self.query"
    assert {f"{query}.lora_A.weight", "base_model.model.classifier.weight"} <= names.keys()
    label = trivium.load(adapted.path).classify("the good cat")
    assert label.label in ("pos", "neg")
    alone = trivium.load(adapted.path / "adapter").classify("the good cat")
    assert alone.label == label.label
    assert alone.scores == pytest.approx(label.scores, abs=1e-4)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("\n".join(f"the cat {n} sat\tle chat {n} dort" for n in range(40)))
    console = quiet()
    translated = finetune(
        "translation", model="transformer-tiny", data=pairs, out=tmp_path / "pairs",
        validation=0.2, console=console,
        changes={"train": {**train, "average": 2, "save_every": 1},
                 "model": {"separate_vocabularies": True}, "tokenizer": {"vocab_size": 150}},
    )  # fmt: skip
    assert (translated.path / "source_tokenizer.json").is_file()
    assert isinstance(trivium.load(translated.path).translate("the cat 3 sat"), str)
    evaluation = json.loads((translated.path / "evaluation.json").read_text())
    assert evaluation["main"] == "bleu"
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "randomly initialized: transformer-tiny is a preset",
        "tok:13a",
        "kB of sources",
        "kB of targets",
        " for targets and ",
        "metrics    on 2 of the validation examples during training, "
        f"and on all {evaluation['num_examples']} at the end",
        f"evaluating on {evaluation['num_examples']} of {evaluation['num_examples']} validation",
        f"(on {evaluation['num_examples']} validation examples, evaluated in ",
    ):
        assert words in printed
    # Targets in another script: the old tokenizer cannot write them. The run looks unfinished.
    pairs.write_text("\n".join(f"the cat {n} sat\t\u732b {n}" for n in range(40)))
    translated.write_metadata(translated.read_metadata() | {"finished": False})
    translated.weights.unlink()
    console = quiet()
    with pytest.warns(UserWarning, match="this is its checkpoint of step 3 of 3"):
        again = finetune(
            "text-to-text", model=translated.path, data=pairs, out=tmp_path / "zh", console=console,
            changes={"train": {**train, "steps": 1, "eval_every": 1}},
        )  # fmt: skip
    shares = again.read_metadata()["unknown_shares"]
    assert shares["targets"] > 0.2 > shares["sources"]
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "of the tokens of the targets are unknown to the tokenizer" in printed
    verdict = summarize(read_run(again.path)).verdict
    assert "a model whose tokenizer covers this text" in verdict


@pytest.mark.filterwarnings("ignore:a text ends at its limit")  # after one step
def test_a_preset_of_two_vocabularies_trains_with_one_unless_told(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("\n".join(f"the cat {n} sat\tle chat {n} dort" for n in range(40)))
    heads = {"mixer": {"num_heads": 2, "head_dim": 8}, "feed_forward": {"d_ff": 8}}
    stack = {"num_layers": 1, "layers": heads}
    run = finetune(
        "translation", model="textbook-transformer-base", data=pairs, out=tmp_path / "run",
        changes={"train": {"steps": 1, "device": "cpu"}, "tokenizer": {"vocab_size": 150},
                 "model": {"d_model": 16, "encoder": stack, "decoder": stack}},
        console=quiet(),
    )  # fmt: skip
    spec = trivium.load(run.path).spec
    assert isinstance(spec, TransformerSpec)
    assert (spec.vocab_size, spec.source_vocab_size) == (128, None)


def test_chinese_text_gets_chinese_samples_and_suggestions(tmp_path):
    text = tmp_path / "zh.txt"
    lines = (
        "\u5317\u4eac\u5927\u5b66\u5728\u5317\u4eac\u3002",
        "\u4e0a\u6d77\u5927\u5b66\u5728\u4e0a\u6d77\u3002",
    )
    text.write_text("\n\n".join(f"{n}{lines[n % 2] * 9}" for n in range(60)), encoding="utf-8")
    console = quiet()
    changes = {"train": {**SHORT, "device": "cpu"}, "data": {"length": 32}}
    run = pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=console)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    suggestion = output.split("try it ")[1]
    assert "\u5927[MASK]\u5728" in suggestion
    samples = run.read_metadata()["samples"]
    assert samples
    assert all("[MASK]" in one["prompt"] for one in samples)
    assert trivium.load(run.path).trained_length == 32


def test_labels_that_only_held_out_examples_have_are_known_and_named(encoder, tmp_path):
    train, valid = tmp_path / "train.conll", tmp_path / "valid.conll"
    train.write_text("the\tO\ncat\tB-PER\n\nseven\tO\n\ndogs\tB-PER\n")
    valid.write_text("the\tO\nmat\tB-LOC\n")
    console = quiet()
    with pytest.warns(match='only held-out examples have the label "B-LOC", "I-LOC"'):
        run = finetune(
            "tagging", model=encoder.path, data=train, validation=valid, out=tmp_path / "run",
            changes={"train": {"steps": 1, "device": "cpu"}}, console=console,
        )  # fmt: skip
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the model cannot recognize names by their capitals" in printed
    labels = trivium.load(run.path).settings.labels
    assert labels == ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")


@pytest.mark.filterwarnings("ignore:a text ends at its limit")  # after one step
def test_texts_for_several_tasks_begin_with_one_of_their_prefixes(reviews, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("\n".join(f"the cat {n} sat\tle chat {n} dort" for n in range(12)))
    french = {"kind": "translation", "prefix": "to French: ", "num_beams": 1}
    tasks = {
        "french": (pairs, french),
        "english": (pairs, {**french, "prefix": "to English: ", "reverse": True}),
        "label": (reviews, {"kind": "classification", "prefix": "classify: "}),
    }
    for names, prefix in ((("french", "label"), ""), (tasks, "to French: ")):
        mix = [
            {"name": one, "paths": [str(tasks[one][0])], "objective": tasks[one][1]}
            for one in names
        ]
        console, out = quiet(), tmp_path / f"run{len(mix)}"
        changes = {
            "train": {"steps": 1, "batch_examples": 8, "eval_examples": 2, "device": "cpu"},
            "tokenizer": {"kind": "wordpiece", "special_tokens": ["<pad>", "</s>", "<unk>"]},
            "mix": mix,
        }
        run = pretrain("t5-tiny", out=out, changes=changes, console=console)
        lm = trivium.load(run.path)
        assert lm.classify("the good cat").label in ("pos", "neg")
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        (line,) = re.findall(r"trivium translate .*", printed)
        assert f" '{prefix}the cat " in line
        if not prefix:  # the only one is added, not that of labels
            assert lm.settings.task_options(lm.settings.task) == {"prefix": "to French: "}
    assert isinstance(lm.translate("to English: le chat"), str)
    message = (
        r'^"classify: the cat": .* begin the text with one of "to French: ", "to English: "\.$'
    )
    with pytest.raises(TriviumError, match=message):
        lm.translate(["to French: the cat", "classify: the cat"])


def test_a_recipe_file_of_a_task_takes_its_model_and_data_from_the_call(encoder, reviews, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[objective]\nkind = "classification"\n[train]\nsteps = 1\ndevice = "cpu"\n')
    with pytest.raises(RecipeError, match="which model to fine-tune"):
        finetune(str(file), data=reviews, out=tmp_path / "run", console=quiet())
    run = finetune(
        str(file), model=encoder.path, data=reviews, out=tmp_path / "run", console=quiet()
    )
    assert f'init_from = "{encoder.path}"' in run.recipe.read_text()


@pytest.mark.parametrize("cache", [None, Path()])
def test_examples_that_are_encoded_are_freed(cache):
    def corpus():
        examples = [SimpleNamespace(number=n, where=f"a.jsonl, line {n}") for n in range(5001)]
        hashes = np.arange(5001, dtype=np.uint64)
        table = ExampleTable(examples, hashes, hashes, hashes >= 5000, cache)
        source = ExampleSource(cast(Any, None), cast(Any, None), table)
        return Corpus(cast(Any, None), cast(Any, SimpleNamespace(fingerprint="a")), None, [source])

    freed = corpus()
    [source] = freed.example_sources
    source.store_truncations(TRAIN, np.tile([0, 1, 0], (5000, 1)), None)
    freed.free_examples()
    assert (len(source.train), source.num_train) == (1000, 5000)
    assert len(source.train.examples) == (1000 if cache is None else 5001)
    assert [one.number for one in source.valid] == [5000]
    assert freed.digests == corpus().digests


@pytest.mark.filterwarnings("ignore:1 of 1 texts are longer")
def test_one_long_example_among_thousands_limits_what_is_read(tmp_path):
    """What is read of an example follows from all of them: a sample would miss the only one."""
    rows = [{"text": f"the cat {n % 7}", "label": "ab"[n % 2]} for n in range(2200)]
    for words, limit in ((1, None), (700, 512)):
        rows[1] = {"text": "the cat " * words, "label": "b"}
        data = tmp_path / f"{words}.jsonl"
        data.write_text("\n".join(map(json.dumps, rows)))
        changes = {"train": {"steps": 1, "device": "cpu", "eval_examples": 2}}
        run = finetune(
            "classification", model="bert-tiny", data=data, out=tmp_path / str(words),
            validation=0.01, changes=changes, console=quiet(),
        )  # fmt: skip
        assert trivium.load(run.path).settings.tokenizer.get("model_max_length") == limit


def test_early_stopping_by_patience(encoder, reviews, tmp_path):
    run = finetune(
        "classification", model=encoder.path, data=reviews, out=tmp_path / "run", console=quiet(),
        changes={"train": {"steps": 60, "eval_every": 1, "patience": 2, "device": "cpu"},
                 "optimizer": {"lr": 1e-9}},
    )  # fmt: skip
    assert run.read_metrics()[-1]["step"] == 3


def test_a_budget_in_minutes_starts_with_the_first_step_and_a_useless_run_warns(text, tmp_path):
    console = quiet()
    changes = settings(**SHORT) | {"optimizer": {"lr": 1e-9}}
    del changes["train"]["steps"]
    changes["train"]["minutes"] = 0.01
    run = pretrain("gpt2-tiny", data=text, out=tmp_path / "run", changes=changes, console=console)
    last = run.read_metrics()[-1]
    assert last["seconds"] - run.read_metadata()["preparation_seconds"] > 0.3
    assert last["step"] > 0
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "warning    Validation loss" in printed
    assert "the unigram baseline" in printed
    assert "; the budget of 0.01 minutes starts now" in printed


def test_mistakes_are_found_before_data_is_read(reviews, text, tmp_path):
    def start(preset, source=text, **changes):
        pretrain(preset, data=source, out=tmp_path / "run", changes=changes, console=quiet())

    with pytest.raises(RecipeError, match=r"trains a head of kind|is for decoders"):
        start("bert-mini", objective={"kind": "causal"})
    with pytest.raises(TriviumError, match='device "gpuu" cannot be used'):
        start("bert-mini", train={"device": "gpuu"})
    with pytest.raises(RecipeError, match=r"data\.length = 5000, but this model has positions"):
        start("bert-mini", data={"length": 5000})
    for by_layer in ({"optimizer": {"layer_decay": 0.9}}, {"train": {"gradual_unfreezing": 0.5}}):
        with pytest.raises(RecipeError, match="two models at once"):
            start("electra-tiny", **by_layer)
    with pytest.raises(DataError, match=r"nowhere\.txt\.\n.*valid\.txt"):
        start("bert-mini", source="nowhere.txt", data={"validation": ["valid.txt"]})
    with pytest.raises(RecipeError, match=r"no-model: there is no such folder.*\n.*no-data\.csv"):
        finetune("qa", model=tmp_path / "no-model", data="no-data.csv", out=tmp_path / "run")
    with pytest.raises(DataError, match="no data to train on"):
        start("bert-mini", source=())
    with pytest.raises(RecipeError, match="not published with a pretraining objective"):
        start("transformer-base")
    with pytest.raises(RecipeError, match="which model to fine-tune"):
        finetune("classification", data=reviews, out=tmp_path / "run", console=quiet())
    with pytest.raises(RecipeError, match="Did you mean"):
        finetune("clasification", model="bert-tiny", data=reviews, out=tmp_path / "run")
    mix = [{"name": "a", "paths": [str(text)], "objective": {"kind": "masked"}}]
    with pytest.raises(RecipeError, match="leave --data out"):
        start("bert-tiny", source=text, mix=mix)
    with pytest.raises(RecipeError, match="leave --data out"):
        finetune("qa", model="bert-tiny", data="a.json", out=tmp_path / "run", changes={"mix": mix})
    with pytest.raises(TriviumError, match="separate_vocabularies"):
        start("bert-tiny", source=text, model={"separate_vocabularies": True})
    other = tmp_path / "latin-1.txt"
    other.write_bytes(text.read_bytes().replace(b"cat", b"caf\xe9"))
    with pytest.raises(DataError, match=r"latin-1\.txt.*UTF-8"):
        start("bert-tiny", source=other)
    assert not (tmp_path / "run").exists()


def test_weights_of_another_shape_are_refused(encoder, text, tmp_path):
    base = open_model(encoder.path)
    wider = build(base.lm.spec.replace(vocab_size=base.lm.spec.vocab_size + 64))
    with pytest.raises(RecipeError, match=r"no tokens\.weight of shape"):
        match_weights(base, wider)
    with pytest.raises(RecipeError, match="is the model to start from"):
        pretrain(encoder.path, data=text, out=encoder.path, overwrite=True, console=quiet())


def test_the_base_model_is_closed_when_training_starts(encoder, text, tmp_path, monkeypatch):
    bases, alive = [], []

    def open_base(*arguments):
        base = open_base_model(*arguments)
        bases.append(weakref.ref(base.weights))
        return base

    class CountBases(trivium.Callback):
        def on_log(self, record):
            gc.collect()
            alive.append(any(base() is not None for base in bases))

    monkeypatch.setattr(training, "open_base_model", open_base)
    changes = settings(steps=2, log_every=1)
    del changes["tokenizer"]
    pretrain(
        encoder.path, data=text, out=tmp_path / "run", changes=changes, callbacks=[CountBases()],
        console=quiet(),
    )  # fmt: skip
    assert len(bases) == 1
    assert alive == [False, False]


def test_standard_input_is_kept_in_the_run(text, tmp_path, monkeypatch):
    with text.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": file}))
        out = tmp_path / "run"
        run = pretrain("gpt2-tiny", data="-", out=out, changes=settings(**SHORT), console=quiet())
    assert (run.path / "standard_input.txt").read_bytes() == text.read_bytes()


@pytest.mark.parametrize("place", ["data", "validation"])
def test_labelled_examples_are_read_from_standard_input(place, tmp_path, monkeypatch):
    """Standard input has JSON lines, as for `eval`, and a resumed run reads them from the run."""
    rows = [json.dumps({"text": f"{'ab'[n % 2]} {n}", "label": "ab"[n % 2]}) for n in range(40)]
    (tmp_path / "file.jsonl").write_text("\n".join(rows[:30]))
    (tmp_path / "stdin.jsonl").write_text("\n".join(rows[20:]))
    given = {"data": tmp_path / "file.jsonl", "validation": tmp_path / "file.jsonl", place: "-"}
    changes = {"train": {"steps": 1, "device": "cpu", "precision": "fp32"}}
    common = {"out": tmp_path / "run", "console": quiet()}
    with (tmp_path / "stdin.jsonl").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": file}))
        run = finetune("classification", model="bert-tiny", changes=changes, **given, **common)
    assert (run.path / "standard_input.jsonl").read_text() == "\n".join(rows[20:])
    assert run.read_metadata()["train_examples"] == {"data": 10, "validation": 20}[place]
    finetune("", changes=["train.steps=2"], resume=True, **common)


def test_quickstart_trains_an_encoder_and_a_decoder(text, tmp_path, monkeypatch):
    presets = {"modernbert-auto": "modernbert-tiny", "llama-auto": "llama-tiny"}

    trained = {}

    def small(preset, *, data, changes, **options):
        trained[preset] = data.name, changes["train"]["minutes"], options.get("validation")
        changes = {**changes, "train": {"steps": 2, "batch_tokens": 128, "eval_tokens": 64}}
        changes |= {"tokenizer": {"vocab_size": 300}, "data": {"length": 64}}
        options["validation"] = None
        return pretrain(presets[preset], data=text, changes=changes, **options)

    monkeypatch.setattr(quickstart_module, "pretrain", small)
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    console = quiet()
    quickstart(minutes=3.0, out="quick quick", console=console)
    assert trained["modernbert-auto"] == ("english.txt.xz", 1.0, None)
    assert trained["llama-auto"] == ("stories.txt.xz", 2.0, easy_text_paths("en")[1])
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "unigram baseline" in printed
    # A text of the untrained model, one halfway, one at the end, and the end again after loading.
    begins = [line for line in printed.splitlines() if line.startswith("   Once upon a time")]
    assert len(begins) == 4
    assert begins[0] != begins[2] == begins[3]
    assert printed.index("untrained") < printed.index("after half of") < printed.rindex("done  ")
    lines = printed.partition("\nNext:\n")[2].splitlines()
    assert re.fullmatch(r"   \. \S+/bin/activate", lines[0])
    commands = [shlex.split(line.replace("minutes=20", "steps=3")) for line in lines[1:]]
    assert {command[0] for command in commands} == {"trivium"}
    for command in commands:
        short = ["--max-new-tokens", "9"] if "generate" in command else []
        if "gpt2-auto" not in command and command[1:] != ["generate", "quick quick/decoder"]:
            assert main([*command[1:], *short]) == 0
    assert (tmp_path / "samples" / "english.txt").is_file()
    with pytest.raises(RecipeError, match="has the runs of an earlier quickstart: replace them"):
        quickstart(minutes=1.0, out="quick quick", console=quiet())


def test_all_checkpoints_the_best_weights_and_the_texts_are_kept(text, tmp_path):
    """What a textbook's run of BERT leaves: its split as text, `vocab.txt`, every checkpoint."""
    train = {"steps": 5, "log_every": 1, "eval_every": 1, "eval_tokens": 64, "save_every": 1}
    changes = settings(**train, keep_checkpoints="all", keep_best=True)
    changes["data"] = {**changes.get("data", {}), "keep_text": True, "validation": 0.3}
    changes["optimizer"] = {"lr": 0.5}  # more than it bears: the last weights are not the best
    run = pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=quiet())
    losses = {r["step"]: r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r}
    best = min(losses, key=losses.__getitem__)
    assert best < len(losses) == 5
    for step in losses:
        kept = load(run.checkpoints / f"step-{step:08}").module.state_dict()
        same = all(torch.equal(w, kept[name]) for name, w in load_file(run.weights).items())
        assert same == (step == best), step
    tokenizer = trivium.Tokenizer.load(run.tokenizer)
    assert (run.path / "vocab.txt").read_text().splitlines() == list(tokenizer.tokens)
    texts = [
        (run.texts / name).read_text().split("\n\n")[:-1]
        for name in ("train.txt", "validation.txt")
    ]
    splits = json.loads((run.shards / "manifest.json").read_text())["splits"]
    assert [len(some) for some in texts] == [
        splits[name]["documents"] for name in ("train", "validation")
    ]


def test_generator_and_discriminator_resume_and_go_on_from_a_run(text, tmp_path):
    """With token vectors that are a sum while they are trained, and a plain table in the end."""
    short = {**SHORT, "steps": 4, "save_every": 2, "keep_checkpoints": 2}
    keys = {"generator_size": 0.5, "sharing": "gradient-disentangled"}
    objective, out = {"kind": "replaced-token", **keys}, tmp_path / "run"
    changes = {**settings(**short), "objective": objective}
    run = pretrain("deberta-v3-tiny", data=text, out=out, changes=changes, console=quiet())
    generator = run.path / "generator" / "model.safetensors"
    saved, beside = load_file(run.weights), load_file(generator)
    last = run.checkpoints / "step-00000004"
    torch.testing.assert_close(load(last).module.state_dict(), saved, rtol=0, atol=0)
    tables = [name for name in load_file(last / "model.safetensors") if "tokens" in name]
    assert tables == ["discriminator.tokens.weight", "generator.tokens.weight"]
    assert not torch.equal(saved["tokens.weight"], beside["tokens.weight"])
    assert load(generator.parent).fill_mask("the [MASK] sat")
    weights = run.weights.read_bytes(), generator.read_bytes()
    shutil.rmtree(last)
    pretrain("", out=out, resume=True, console=quiet())
    assert weights == (run.weights.read_bytes(), generator.read_bytes())
    # A rate so small that weights stay as they are.
    still = {"objective": objective, "train": SHORT, "optimizer": {"lr": 1e-30}}
    again = pretrain(run.path, data=text, out=tmp_path / "on", changes=still, console=quiet())
    after = load_file(again.weights), load_file(again.path / "generator" / "model.safetensors")
    torch.testing.assert_close(after, (saved, beside), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_an_adapter_is_trained_on_a_quantised_base_and_resumed(kind, encoder, reviews, tmp_path):
    """The written model has the dequantised weights; the adapter is written alone, too."""
    pytest.importorskip("bitsandbytes")
    changes = {
        "model": {"quantize": kind},
        "adapter": {"rank": 3, "targets": ["all-linear"], "save_separately": True},
        "optimizer": {"lr": 0.01},
        "train": {"steps": 4, "save_every": 2, "eval_every": 2, "device": "cpu"},
    }
    arguments = {"model": encoder.path, "data": reviews, "console": quiet()}
    run = finetune("classification", out=tmp_path / "run", changes=changes, **arguments)
    texts = ["the good cat", "a bad dog"]
    lm = load(run.path, device="cpu")
    scores = lm.classify(texts)
    quantised = {n for n in lm.module.state_dict() if n.endswith(("query.weight", "up.weight"))}
    base = load(encoder.path, device="cpu").module.state_dict()
    assert all(not torch.equal(lm.module.state_dict()[name], base[name]) for name in quantised)
    checkpoint = load_file(run.path / "checkpoints" / "step-00000004" / "model.safetensors")
    assert not quantised & checkpoint.keys()
    assert any(name.endswith("query.lora_a") for name in checkpoint)
    alone = load(run.path / "adapter", device="cpu").classify(texts)
    for one, other in zip(scores, alone, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=0.1)
    shutil.copytree(run.path, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-00000004")
    again = finetune("", out=tmp_path / "again", resume=True, console=quiet())
    for name, weight in load(again.path, device="cpu").module.state_dict().items():
        assert torch.equal(weight, lm.module.state_dict()[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"quantize": "nf4"}}, "set adapter.rank"),
        ({"model": {"quantize": "nf4", "new_weights": True}, "adapter": {"rank": 2}}, "init_from"),
        (
            {"model": {"quantize": "int8"}, "adapter": {"rank": 2}, "train": {"compile": True}},
            "train.compile",
        ),
        ({"model": {"quantize": "int4"}, "adapter": {"rank": 2}}, "model.quantize"),
    ],
)
def test_a_base_that_cannot_be_quantised_is_refused(changes, message, encoder, reviews, tmp_path):
    arguments = {"model": encoder.path, "data": reviews, "console": quiet()}
    with pytest.raises(RecipeError, match=message):
        finetune("classification", out=tmp_path / "run", changes=changes, **arguments)
