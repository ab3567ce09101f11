"""Examples that are read once: from the cache, they are those of the files, with the same split."""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled_tasks import KINDS, record, write_records

from trivium.data.data_cache import UNUSED_DAYS
from trivium.data.records import BadRecords, ReadReport, RecordOptions
from trivium.data.stored_examples import ExampleWriter, SelectedExamples, StoredExamples, read_field
from trivium.errors import DataError
from trivium.interop.settings import Settings
from trivium.objectives import LabelledObjective
from trivium.objectives.classification import LabelledText, TextClassification
from trivium.objectives.example_split import find_validation, read_examples, read_table
from trivium.presets import presets


def task(kind: str, **keys: Any) -> LabelledObjective:
    return LabelledObjective.kinds[kind].from_tree({"kind": kind, **keys})


def forbid_reading(monkeypatch) -> None:
    def fail(*arguments):
        raise AssertionError("the files are read")

    monkeypatch.setattr(LabelledObjective, "read", fail)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held_out", ["share", "file"])
def test_a_second_start_has_the_examples_of_the_first(kind, held_out, tmp_path, monkeypatch):
    path = str(write_records(tmp_path / "a.jsonl", [record(kind, n) for n in range(30)]))
    valid = str(write_records(tmp_path / "b.jsonl", [record(kind, n) for n in range(30, 36)]))
    validation = 0.3 if held_out == "share" else [valid]
    train, held_out = read_examples(task(kind), [path], validation, RecordOptions())
    arguments = task(kind), [path], validation, RecordOptions(), tmp_path / "cache"
    first = read_table(*arguments)
    if first.cache is not None:
        forbid_reading(monkeypatch)
    second = read_table(*arguments)
    for table in (first, second):
        assert isinstance(table.examples, list if table.cache is None else StoredExamples)
        mask = np.asarray(table.is_validation)
        for part, expected in ((~mask, train), (mask, held_out)):
            read = [*SelectedExamples(table.examples, np.flatnonzero(part))]
            assert read == expected
            assert list(map(repr, read)) == list(map(repr, expected))  # types of inner values, too


def test_only_tasks_with_values_that_json_lacks_keep_examples_in_memory():
    assert [kind for kind in KINDS if task(kind).example_type is None] == ["policy"]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.sets(st.sampled_from("abcd"), max_size=3)),
        min_size=2,
        max_size=30,
        unique_by=lambda pair: pair[0],
    ),
    st.sampled_from([0.05, 0.3, 0.9]),
)
def test_the_split_is_that_of_its_definition(rows, fraction):
    hashes = [hashed for hashed, _ in rows]
    by_label: dict[str, set[int]] = {}
    for hashed, names in rows:
        for name in names or {""}:
            by_label.setdefault(name, set()).add(hashed)
    fixed = {max(groups) for groups in by_label.values()}
    expected = {hashed for hashed in hashes if hashed < fraction * 2**64} - fixed
    lacking = [groups - fixed for groups in by_label.values() if not groups & expected]
    expected |= {min(groups) for groups in lacking if groups}
    mask = find_validation(np.array(hashes, dtype=np.uint64), fraction, [n for _, n in rows])
    assert mask.tolist() == [hashed in expected for hashed in hashes]


def test_examples_of_several_blocks_come_back_in_any_order(tmp_path):
    examples = [LabelledText(f"text {n}", None, ("a", "b"), f"x, line {n}") for n in range(1000)]
    with ExampleWriter(tmp_path, LabelledText) as writer:
        for one in examples:
            writer.append(one)
    stored = StoredExamples(tmp_path, LabelledText, len(examples))
    assert [*stored] == examples
    assert stored[990:20:-333] == examples[990:20:-333]
    assert stored[-1] == examples[-1]
    with pytest.raises(IndexError, match="example 1000 of 1000"):
        stored[1000]
    some = SelectedExamples(stored, np.array([7, 900, 8]))
    assert [*some] == [examples[7], examples[900], examples[8]]
    assert some[1:] == [examples[900], examples[8]]
    assert [*some.select(np.array([True, False, True]))] == [examples[7], examples[8]]
    for kind in (examples, stored):
        assert [*read_field(kind, "text")] == [one.text for one in examples]
    for indices in ([7, 8, 900], [7, 900, 8], [8, 8]):
        chosen = SelectedExamples(stored, np.array(indices))
        assert [*read_field(chosen, "text")] == [examples[n].text for n in indices]
    with ExampleWriter(tmp_path, LabelledText):
        pass
    assert [*StoredExamples(tmp_path, LabelledText, 0)] == []


def test_what_a_run_learns_from_labels_does_not_parse_all_texts(tmp_path, monkeypatch):
    examples = [LabelledText(f"text {n}", None, "abc"[n % 3], f"x, line {n}") for n in range(1000)]
    with ExampleWriter(tmp_path, LabelledText) as writer:
        for one in examples:
            writer.append(one)
    stored, read = StoredExamples(tmp_path, LabelledText, len(examples)), list[str]()
    original = StoredExamples._read_column

    def note(self, number, name):
        read.append(name)
        return original(self, number, name)

    monkeypatch.setattr(StoredExamples, "_read_column", note)
    labelled = SelectedExamples(stored, np.arange(len(examples)))
    spec, objective = presets["bert-tiny"], TextClassification(class_weights="balanced")
    results = []
    for kind in (labelled, examples):
        one = objective.adapt_to_model(Settings(), kind).infer_keys(spec, kind)
        settings = one.with_label_statistics(one.add_settings(Settings(), kind), kind)
        results.append((one.with_labels(settings.labels, kind), settings, one.label_names(kind)))
    assert results[0] == results[1]
    assert read.count("label") > 4  # of four blocks, in several passes
    assert read.count("text") == 1


def entries(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


def test_other_data_options_and_tasks_have_entries_of_their_own(tmp_path):
    cache = tmp_path / "cache"
    path = write_records(tmp_path / "a.jsonl", [record("classification", n) for n in range(9)])

    def read(kind="classification", validation=0.3, bad=None, **keys):
        options = RecordOptions(bad=bad)
        read_table(task(kind, **keys), [str(path)], validation, options, cache)
        return len(entries(cache))

    assert [read(), read(), read(validation=0.4), read(label_kind="classes")] == [1, 1, 2, 3]
    assert read(bad=BadRecords()) == 4
    write_records(path, [record("classification", n) for n in range(8)])
    assert [read(), read()] == [5, 5]
    other = path.rename(tmp_path / "b.jsonl")
    table = read_table(task("classification"), [str(other)], 0.3, RecordOptions(), cache)
    assert "b.jsonl, line 1" in table.examples[0].where


def test_what_the_first_reading_said_the_second_says_too(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("text;label\nx;a\ny;b\n;c\nz;a\n")

    def read():
        bad, report = BadRecords(), ReadReport()
        options = RecordOptions(bad=bad, report=report)
        with pytest.warns(UserWarning, match="are separated by semicolons"):
            read_table(task("classification"), [str(path)], 0.0, options, tmp_path / "cache")
        return bad.describe_skipped(3), report.lines

    first = read()
    forbid_reading(monkeypatch)
    assert read() == first
    assert first[0][0] == "1 of 4 records are skipped:"
    assert "label" in first[1][0]


@pytest.mark.parametrize("harm", ["changed", "shorter", "missing", "foreign", "no list"])
def test_a_damaged_or_foreign_entry_is_read_again(harm, tmp_path):
    cache = tmp_path / "cache"
    path = write_records(tmp_path / "a.jsonl", [record("classification", n) for n in range(9)])

    def read(validation: float):
        return read_table(task("classification"), [str(path)], validation, RecordOptions(), cache)

    expected = [*read(0.3).examples]
    [entry] = entries(cache)
    file = entry / "examples.json"
    match harm:
        case "changed":
            file.write_bytes(file.read_bytes().replace(b"a", b"b"))
        case "shorter":
            file.write_bytes(file.read_bytes()[:-9])
        case "missing":
            file.unlink()
        case "foreign":
            read(0.4)
            [other] = {*entries(cache)} - {entry}
            shutil.rmtree(entry)
            other.rename(entry)
        case _:
            (entry / "entry.json").write_text("[]")
    with pytest.warns(UserWarning, match="is damaged or incomplete: it is prepared again"):
        assert [*read(0.3).examples] == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [*read(0.3).examples] == expected


def test_a_reading_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "x", "label": "a"}) + "\n{}\n")
    with pytest.raises(DataError, match=r"a\.jsonl, line 2 has no column"):
        read_table(task("classification"), [str(path)], 0.0, RecordOptions(), tmp_path / "cache")
    assert entries(tmp_path / "cache") == []


def test_entries_that_no_run_has_opened_for_long_are_deleted(tmp_path):
    cache = tmp_path / "cache"
    path = write_records(tmp_path / "a.jsonl", [record("classification", n) for n in range(9)])

    def read(validation: float) -> Path:
        before = {*entries(cache)} if cache.is_dir() else set()
        read_table(task("classification"), [str(path)], validation, RecordOptions(), cache)
        return next(iter({*entries(cache)} - before), cache)

    opened, unused = read(0.3), read(0.4)
    before = time.time() - (UNUSED_DAYS + 1) * 24 * 3600
    for folder in (opened, unused):
        os.utime(folder, (before, before))
    read(0.3)
    last = read(0.5)
    assert entries(cache) == sorted([opened, last])
