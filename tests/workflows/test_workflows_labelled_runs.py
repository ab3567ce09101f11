"""What a run on labelled examples says of cuts and steps, and what bounds its validation loss."""

from __future__ import annotations

import numpy as np
import pytest
from labelled_tasks import (
    FAMILIES,
    KINDS,
    PRESETS,
    TO_TARGET,
    examples_of,
    record,
    text_of,
    write_records,
)
from overfit_tasks import word_tokenizer
from run_settings import quiet, settings

import trivium
from trivium.data.encoded import EncodedExamples
from trivium.errors import DataError, SpecError
from trivium.models import build
from trivium.objectives import LabelledObjective
from trivium.presets import presets
from trivium.train.loader import BatchStream
from trivium.workflows.training import finetune, pretrain

pytestmark = pytest.mark.filterwarnings("ignore")


def run(kind, folder, records, *, validation=None, console=None, **train):
    """A short run of a task on a CPU, with the smallest model of its family."""
    out = folder / "run"
    changes = {
        "train": {"device": "cpu", "eval_every": 1, **train},
        "objective": {"num_beams": 1} if kind in TO_TARGET else {},
    }
    return finetune(
        kind,
        model=PRESETS[FAMILIES[kind]],
        data=write_records(folder / "data.jsonl", records),
        validation=validation,
        out=out,
        changes=changes,
        console=console or quiet(),
        overwrite=True,
    )


def printed(console) -> str:
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize("kind", ["chat", "preference", "kto", "reward"])
def test_a_run_says_what_is_cut_and_refuses_data_without_targets(kind, tmp_path):
    records = [record(kind, n, size=4 if n % 2 else 90) for n in range(30)]
    console = quiet()
    done = run(kind, tmp_path, records, console=console, steps=1)
    assert "are truncated" not in printed(console)  # a model with 1,024 positions reads them whole
    assert done.read_metadata()["train_examples"] + done.read_metadata()["valid_examples"] == 30
    changes = {"data": {"length": 40}, "train": {"device": "cpu", "steps": 1}}
    data = tmp_path / "data.jsonl"
    console = quiet()
    finetune(
        kind, model=PRESETS[FAMILIES[kind]], data=data, out=tmp_path / "short", changes=changes,
        console=console,
    )  # fmt: skip
    assert "15 of 30 examples (50.0%) are truncated: they have more than 40 tokens" in printed(
        console
    )
    assert (
        "15 of 30 examples are skipped, because truncation removes all their target tokens"
        in printed(console)
    )
    write_records(data, [record(kind, n, size=90) for n in range(30)])
    for validation in (0.1, write_records(tmp_path / "v.jsonl", [record(kind, 31, size=4)])):
        with pytest.raises(DataError, match="to train on none has a target token left"):
            finetune(
                kind, model=PRESETS[FAMILIES[kind]], data=data, validation=validation,
                out=tmp_path / "none", changes=changes, console=quiet(),
            )  # fmt: skip
    valid = write_records(tmp_path / "v.jsonl", [record(kind, 31, size=90)])
    write_records(data, [record(kind, n, size=4) for n in range(30)])
    with pytest.raises(DataError, match="of 1 examples held out none has a target token left"):
        finetune(
            kind, model=PRESETS[FAMILIES[kind]], data=data, validation=valid,
            out=tmp_path / "none", changes=changes, console=quiet(),
        )  # fmt: skip


def test_the_default_length_is_that_of_the_data_up_to_the_positions(tmp_path):
    for response, length in ((8, 512), (700, 1024), (2000, 1024)):
        records = [record("chat", n, response=response) for n in range(6)]
        console = quiet()
        lm = trivium.load(run("chat", tmp_path, records, console=console, steps=1).path)
        assert ("are truncated" in printed(console)) == (response == 2000)
        if response == 700:
            assert 700 < lm.max_length <= 1024
        else:
            assert lm.max_length == length


def test_the_number_of_steps_is_printed_and_few_are_warned_of(tmp_path):
    records = [record("chat", n) for n in range(45)]
    console = quiet()
    done = run("chat", tmp_path, records, console=console, epochs=1, batch_examples=4)
    count = done.read_metadata()["train_examples"]
    steps = -(-count // 4)
    assert f"steps {steps}; one epoch is {count / 4:.1f} steps" in printed(console)
    assert f"{steps} steps in all, too few to learn much from" in printed(console)
    assert done.read_metrics()[-1]["step"] == steps
    console = quiet()
    run("chat", tmp_path, records, console=console, epochs=5, batch_examples=4, eval_every=99)
    assert "too few to learn much from" not in printed(console)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "policy"])
def test_validation_losses_read_as_many_examples_as_budgets_allow(kind, tmp_path, monkeypatch):
    taken: list[int] = []
    held_out = BatchStream.validation_batches

    def counted(stream, tokens, limit=None, *others):
        for batch in held_out(stream, tokens, limit, *others):
            taken.append(sum(part.num_rows for part in batch.micro_batches))
            yield batch

    monkeypatch.setattr(BatchStream, "validation_batches", counted)
    records = [record(kind, n) for n in range(40)]
    valid = write_records(tmp_path / "v.jsonl", [record(kind, n) for n in range(40, 70)])
    of_example = 2 if kind == "contrastive" else 1  # texts
    for train, most in (
        ({"eval_examples": 3}, 3),
        ({"eval_tokens": 60}, 12),
        ({"eval_examples": 3, "eval_tokens": 1}, 1),
        ({}, 30),
    )[: 3 if kind in TO_TARGET else 4]:
        taken.clear()
        run(kind, tmp_path, records, validation=valid, steps=1, **train)
        assert 0 < sum(taken) <= most * of_example, train
        assert sum(taken) == most * of_example or "eval_tokens" in train


def test_a_document_that_is_cut_has_no_end_in_a_decoder_and_is_counted(text, tmp_path):
    for preset, ends in (("gpt2-tiny", False), ("bert-tiny", True)):
        changes = settings(steps=1)
        changes["data"] = {**changes.get("data", {}), "packing": "truncate", "length": 16}
        rows: list[np.ndarray] = []
        console = quiet()
        prepare = BatchStream._prepare_batch

        def noted(stream, taken, keys, prepare=prepare, rows=rows):
            rows.append(taken.input_ids[taken.lengths == 16][:, -1])
            return prepare(stream, taken, keys)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BatchStream, "_prepare_batch", noted)
            done = pretrain(
                preset, data=text, out=tmp_path / preset, changes=changes, console=console
            )
        suffix = trivium.load(done.path).tokenizer.suffix_ids
        assert "training documents are truncated to the 16 tokens of a row" in printed(console)
        assert (np.isin(np.concatenate(rows), suffix).mean() > 0.9) == ends


def test_cuts_of_no_chunk_are_those_of_whole_rows(tmp_path):
    EncodedExamples.store([EncodedExamples({"input_ids": [[1, 2], [3]]})], tmp_path / "a")
    assert EncodedExamples.open(tmp_path / "a").truncations.tolist() == [[0, 1, 0]] * 2


def save_with_few_ids(folder, family, texts):
    """Save a model that has 12 of the ids of its tokenizer."""
    tokenizer = word_tokenizer(family, texts)
    spec = presets[f"{family}-tiny"].replace(vocab_size=12)
    return trivium.LanguageModel(spec, build(spec, seed=0), tokenizer).save(folder)


@pytest.mark.filterwarnings("ignore:the tokenizer has")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "policy"])
def test_examples_with_an_id_that_the_model_lacks_are_refused(kind, tmp_path):
    records = [record(kind, n, response=4) for n in range(20)]
    examples = examples_of(kind, tmp_path / "data.jsonl", records)
    texts = list(LabelledObjective.kinds[kind].from_tree({"kind": kind}).texts(examples))
    model = save_with_few_ids(tmp_path / "model", FAMILIES[kind], texts)
    with pytest.raises(SpecError, match=r"has id \d+, but this model takes 0 to 11"):
        finetune(
            kind, model=str(model), data=tmp_path / "data.jsonl", out=tmp_path / "run",
            changes={"train": {"device": "cpu", "steps": 2}}, console=quiet(),
        )  # fmt: skip


@pytest.mark.filterwarnings("ignore:the tokenizer has")
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_text_with_an_id_that_the_model_lacks_is_refused(family, tmp_path):
    texts = [text_of(n, 12) for n in range(200)]
    (tmp_path / "text.txt").write_text("\n".join(texts))
    model = save_with_few_ids(tmp_path / "model", family, texts)
    changes = {name: each for name, each in settings(steps=2).items() if name != "tokenizer"}
    changes["model"] = {"init_from": str(model)}
    with pytest.raises(SpecError, match=r"has id \d+, but this model takes 0 to 11"):
        pretrain(
            None, data=tmp_path / "text.txt", out=tmp_path / "run", changes=changes, console=quiet()
        )
