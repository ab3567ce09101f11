"""Which examples are held out: by their text alone, and in every task never trained on."""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled_tasks import FAMILIES, KINDS, PRESETS, record, write_records
from run_settings import quiet

from trivium.errors import DataError
from trivium.objectives import LabelledObjective
from trivium.objectives.classification import LabelledText
from trivium.objectives.example_split import hash_group, split_examples
from trivium.progress import ProgressLine
from trivium.train.recipe_loading import build_recipe
from trivium.train.run_folder import RunFolder
from trivium.workflows.corpus import ExampleSource, _open_source, _remove_validation_examples
from trivium.workflows.evaluate import _note_training_overlap

numbers = st.integers(0, 10_000)
fractions = st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.9])


def example(number: int, *labels: str) -> Any:
    return SimpleNamespace(group_key=f"text {number}", labels=labels)


def sides(examples, fraction):
    train, valid = split_examples(examples, fraction, [one.labels for one in examples])
    assert len(train) + len(valid) == len(examples)
    return {one.group_key for one in train}, {one.group_key for one in valid}


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.dictionaries(numbers, st.sampled_from("abcde"), min_size=2, max_size=40),
    st.dictionaries(numbers, st.sampled_from("abcdef"), min_size=1, max_size=5),
    fractions,
    st.booleans(),
)
def test_more_examples_move_at_most_as_many_others(before, more, fraction, has_labels):
    def examples(labels):
        return [example(n, *([name] if has_labels else [])) for n, name in labels.items()]

    more = {n: name for n, name in more.items() if n not in before}
    _, valid = sides(examples(before), fraction)
    _, after = sides(examples({**more, **before}), fraction)
    moved = valid ^ (after & {one.group_key for one in examples(before)})
    assert len(moved) <= len(more)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.dictionaries(
        numbers, st.sets(st.sampled_from("abcde"), max_size=3), min_size=2, max_size=20
    ),
    fractions,
)
def test_every_label_is_learned_and_no_text_is_on_both_sides(labels, fraction):
    examples = [example(n, *sorted(names)) for n, names in labels.items()]
    train, valid = sides(examples, fraction)
    assert train
    assert not train & valid
    with_label = defaultdict(set)
    for one in examples:
        for name in one.labels or ("",):
            with_label[name].add(one.group_key)
    for groups in with_label.values():
        assert groups & train
    if all(len(one.labels) < 2 for one in examples):
        assert all(groups & valid for groups in with_label.values() if len(groups) > 1)


def test_the_share_is_that_of_the_hash_and_few_labels_have_their_part():
    names = ["often"] * 3000 + ["some"] * 40 + ["rare"] * 5 + ["pair"] * 2 + ["once"]
    examples = [LabelledText(f"text {i}", None, name, "x") for i, name in enumerate(names)]
    _, valid = split_examples(examples, 0.1, [[one.label] for one in examples])
    counts = [sum(one.label == name for one in valid) for name in ("often", "some", "rare")]
    assert 240 < counts[0] < 360
    assert 1 <= counts[1] <= 12
    assert 1 <= counts[2] <= 3
    assert [one.label for one in valid].count("pair") == 1
    assert "once" not in {one.label for one in valid}
    kept = split_examples(examples[::-1], 0.1, [[one.label] for one in examples[::-1]])[1]
    assert kept == valid[::-1]
    wider = {one.text for one in split_examples(examples[:3000], 0.2)[1]}
    assert {one.text for one in split_examples(examples[:3000], 0.1)[1]} < wider
    assert split_examples(examples, 0) == (examples, [])


def test_spaces_line_ends_and_unicode_form_do_not_part_examples():
    for one, other in (
        ("a b", " a  b\r\n"),
        ("caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")),
    ):
        assert one != other
        first, second = (LabelledText(text, None, "a", "x") for text in (one, other))
        assert hash_group(first) == hash_group(second)
        with pytest.raises(DataError, match="2 examples with the same text cannot be split"):
            split_examples([first, second], 0.5)
    with pytest.raises(DataError, match="at least 0 and below 1"):
        split_examples([LabelledText("a", None, "a", "x")], 1.0)


def opened(folder, *sources: dict[str, Any], **keys: Any) -> list[ExampleSource]:
    """The sources of a recipe, as a run reads them; of one or of a mix."""
    kind = sources[0]["objective"]["kind"]
    tree: dict[str, Any] = {"model": {"preset": PRESETS[FAMILIES[kind]]}, **keys}
    if len(sources) == 1:
        (source,) = sources
        tree["objective"] = source.pop("objective")
        tree["data"] = {n: value for n, value in source.items() if n != "name"}
    else:
        tree["mix"] = list(sources)
    recipe = build_recipe(tree)
    run = RunFolder(folder / "run")
    log = ProgressLine(quiet())
    return [_open_source(recipe, one, run, log) for one in recipe.sources]  # type: ignore[misc]


def without_held_out(sources: list[ExampleSource]) -> str:
    console = quiet()
    _remove_validation_examples(sources, ProgressLine(console))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_files_inside_the_data_are_not_trained_on(kind, tmp_path):
    records = [record(kind, n) for n in range(20)]
    data = tmp_path / "data"
    write_records(data / "train.jsonl", records[:14])
    valid = write_records(data / "valid.jsonl", records[14:])
    link, hard = tmp_path / "link.jsonl", tmp_path / "hard.jsonl"
    link.symlink_to(valid)
    os.link(valid, hard)
    objective = {"kind": kind}
    for paths, held_out in (
        ([data], valid),
        ([data], link),
        ([data], hard),
        ([data / "*.jsonl"], data / "v*.jsonl"),
        ([data / "train.jsonl", link], valid),
        ([data / "train.jsonl", hard], valid),
    ):
        source = {"paths": [str(one) for one in paths], "validation": [str(held_out)]}
        (one,) = opened(tmp_path, {**source, "objective": objective})
        printed = without_held_out([one])
        assert (one.num_train, len(one.train), len(one.valid)) == (14, 14, 6)
        assert "6 examples of --data have the same text or prompt" in printed
        groups = [{hash_group(example) for example in side} for side in (one.train, one.valid)]
        assert not groups[0] & groups[1]
    for same in (valid, link, hard):
        source = {"paths": [str(valid)], "validation": [str(same)], "objective": objective}
        with pytest.raises(DataError, match=r"Every example of .* is also held out"):
            without_held_out(opened(tmp_path, source))


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_source_of_a_mix_holds_out_no_other_trains_on(kind, tmp_path):
    records = [record(kind, n) for n in range(60)]
    one = write_records(tmp_path / "one.jsonl", records)
    two = write_records(tmp_path / "two.jsonl", records[20:])
    objective = {"kind": kind}
    sources = opened(
        tmp_path,
        {"name": "one", "paths": [str(one)], "validation": 0.1, "objective": objective},
        {"name": "two", "paths": [str(two)], "validation": 0.5, "objective": objective},
    )
    printed = without_held_out(sources)
    held_out = {hash_group(example) for source in sources for example in source.valid}
    trained = {hash_group(example) for source in sources for example in source.train}
    assert trained
    assert not held_out & trained
    assert "examples of one have the same text or prompt as an example in the validation set" in (
        printed
    )


def test_another_seed_moves_nothing(tmp_path):
    path = write_records(tmp_path / "a.jsonl", [record("classification", n) for n in range(50)])
    source = {"paths": [str(path)], "validation": 0.2, "objective": {"kind": "classification"}}
    several = [[*opened(tmp_path, dict(source), seed=seed)[0].valid] for seed in (0, 1, 2)]
    assert several[0] == several[1] == several[2] != []


def test_eval_says_what_was_trained_on_and_not_what_was_held_out(tmp_path):
    train, valid = tmp_path / "data" / "train.jsonl", tmp_path / "data" / "valid.jsonl"
    for path in (train, valid):
        write_records(path, [record("classification", 1)])
    link, hard = tmp_path / "link.jsonl", tmp_path / "hard.jsonl"
    link.symlink_to(train)
    os.link(train, hard)
    recipe = {"data": {"paths": [str(tmp_path / "data")], "validation": [str(valid)]}}
    for path, is_known in ((train, True), (link, True), (valid, False)):
        assert bool(_note_training_overlap([str(path)], recipe)) == is_known, path
    recipe["data"]["paths"] = [str(tmp_path / "data" / "*.jsonl")]
    assert _note_training_overlap([str(hard)], recipe)
    assert not _note_training_overlap([str(tmp_path / "no such file")], recipe)


def test_every_task_has_a_record():
    assert {*KINDS} == {*LabelledObjective.kinds}
