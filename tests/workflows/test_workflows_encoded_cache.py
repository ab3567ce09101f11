"""Encoded examples are kept: a second start and a resume train on them without encoding."""

from __future__ import annotations

from typing import Any

import pytest
from labelled_tasks import FAMILIES, KINDS, PRESETS, record, write_records
from run_settings import quiet

from trivium.data.stored_examples import StoredExamples
from trivium.errors import DataError
from trivium.objectives import LabelledObjective
from trivium.train.distributed import Parallel
from trivium.workflows import corpus, streams
from trivium.workflows.training import finetune


def train(kind: str, path, out, *, resume: bool = False, **changes: Any) -> list[Any]:
    train = {"steps": 2, "device": "cpu", "precision": "fp32", "save_every": 1}
    tree = {"tokenizer": {"vocab_size": 300}, **changes}
    run = finetune(
        kind,
        model="" if resume else PRESETS[FAMILIES[kind]],
        data=() if resume else str(path),
        out=out,
        changes={} if resume else {"train": train, **tree},
        resume=resume,
        console=quiet(),
    )
    names = "step", "train_loss", "valid_loss"
    return [[one.get(name) for name in names] for one in run.read_metrics()]


def forbid_encoding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments):
        raise AssertionError("examples are encoded")

    monkeypatch.setattr(LabelledObjective.kinds[kind], "encode", fail)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "examples"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["classification", "tagging", "translation"])
def test_a_second_start_does_not_encode(kind, tmp_path, cache, monkeypatch):
    data = write_records(tmp_path / "a.jsonl", [record(kind, n) for n in range(40)])
    first = train(kind, data, tmp_path / "one")
    assert len([*cache.iterdir()]) == 3  # the examples, and both encoded splits
    assert not (tmp_path / "one" / "examples").exists()
    forbid_encoding(kind, monkeypatch)
    assert train(kind, data, tmp_path / "two") == first
    assert len([*cache.iterdir()]) == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted({*KINDS} - {"policy"}))  # it encodes prompts at each start
def test_a_second_start_reads_few_whole_examples(kind, tmp_path, cache, monkeypatch):
    """Of all examples, it reads at most single fields, such as the label."""
    monkeypatch.setattr(corpus, "_SAMPLED_EXAMPLES", 50)
    data = write_records(tmp_path / "a.jsonl", [record(kind, n) for n in range(600)])
    few = write_records(tmp_path / "b.jsonl", [record(kind, n) for n in range(40)])
    train(kind, few, tmp_path / "base")
    changes = {"train": {"steps": 1, "device": "cpu", "precision": "fp32", "eval_examples": 8}}
    first = {"model": tmp_path / "base", "data": data, "changes": changes, "console": quiet()}
    finetune(kind, out=tmp_path / "first", **first)
    read, get = [], StoredExamples.__getitem__

    def count(self: StoredExamples, index: Any) -> Any:
        read.append(index)
        return get(self, index)

    monkeypatch.setattr(StoredExamples, "__getitem__", count)
    finetune(kind, out=tmp_path / "second", **first)
    assert 0 < len(read) < 300


@pytest.mark.filterwarnings("ignore")
def test_other_settings_are_encoded_anew(tmp_path, cache):
    data = write_records(tmp_path / "a.jsonl", [record("tagging", n) for n in range(40)])
    train("tagging", data, tmp_path / "one")
    train("tagging", data, tmp_path / "two", data={"length": 8})
    assert len([*cache.iterdir()]) == 5
    train("tagging", data, tmp_path / "three", objective={"repair_iob": False})
    assert len([*cache.iterdir()]) == 8


@pytest.mark.filterwarnings("ignore")
def test_without_the_cache_a_resume_uses_what_the_run_has_encoded(tmp_path, cache, monkeypatch):
    data = write_records(tmp_path / "a.jsonl", [record("tagging", n) for n in range(40)])
    run = tmp_path / "run"
    first = train("tagging", data, run, data={"cache": False})
    assert not cache.exists()
    assert len([*(run / "examples").iterdir()]) == 3
    forbid_encoding("tagging", monkeypatch)
    assert train("tagging", data, run, resume=True) == first


@pytest.mark.filterwarnings("ignore")
def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, cache):
    data = write_records(tmp_path / "a.jsonl", [record("tagging", n) for n in range(40)])
    cache.parent.write_text("a file")
    train("tagging", data, tmp_path / "run")
    assert len([*(tmp_path / "run" / "examples").iterdir()]) == 3


def in_two_parts(self: Parallel, function: Any, items: Any) -> list[Any]:
    """Apply a function as two processes do, one after the other."""
    middle = len(items) // 2
    return [one for part in (items[:middle], items[middle:]) if part for one in function(part)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["tagging", "translation"])
def test_processes_that_share_the_encoding_train_on_the_same(kind, tmp_path, monkeypatch):
    data = write_records(tmp_path / "a.jsonl", [record(kind, n) for n in range(40)])
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "whole"))
    whole = train(kind, data, tmp_path / "one")
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "parts"))
    monkeypatch.setattr(streams, "_MOST_AT_ONCE", 7)
    monkeypatch.setattr(Parallel, "map", in_two_parts)
    assert train(kind, data, tmp_path / "two") == whole
    folders = (
        {one.name for one in (tmp_path / n / "examples").iterdir()} for n in ("whole", "parts")
    )
    assert len({*next(folders)} & {*next(folders)}) == 3


@pytest.mark.filterwarnings("ignore")
def test_an_error_of_one_process_is_raised_by_all(tmp_path, cache, monkeypatch):
    data = write_records(tmp_path / "a.jsonl", [record("tagging", n) for n in range(40)])
    encode = LabelledObjective.kinds["tagging"].encode

    def fail(objective, examples, lm):
        if any(one.where.endswith("line 39") for one in examples):
            raise DataError("line 39 cannot be encoded")
        return encode(objective, examples, lm)

    monkeypatch.setattr(LabelledObjective.kinds["tagging"], "encode", fail)
    monkeypatch.setattr(streams, "_MOST_AT_ONCE", 7)
    monkeypatch.setattr(Parallel, "map", in_two_parts)
    with pytest.raises(DataError, match="line 39 cannot be encoded"):
        train("tagging", data, tmp_path / "one")
    assert len([*cache.iterdir()]) == 1  # the examples
