"""Data from Python: what it may be, that a run is that of a file, and that it is resumed."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from run_settings import assert_equal_runs, interrupt_and_resume, quiet, settings

from trivium.data.python_data import PathList, resolve_data, write_data
from trivium.errors import DataError, RecipeError, TriviumError
from trivium.model_loading import load
from trivium.workflows.training import finetune, pretrain

OF_EXAMPLES = settings(steps=2, eval_every=2, save_every=1, batch_tokens=None, eval_tokens=None)


def frame(rows):
    return pytest.importorskip("pandas").DataFrame(rows)


def data_set(rows):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(rows)
    return data.class_encode_column("label") if "label" in rows[0] else data


def stream(rows):
    datasets = pytest.importorskip("datasets")
    return datasets.IterableDataset.from_generator(lambda: iter(rows))


KINDS = {
    "list": list,
    "tuple": tuple,
    "generator": lambda rows: (row for row in rows),
    "frame": frame,
    "data-set": data_set,
    "stream": stream,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_texts_from_python_is_that_of_a_file(kind, text, tmp_path):
    texts = text.read_text().split("\n\n")[:60]
    rows = [{"text": one} for one in texts]
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    options = {"changes": settings(steps=2), "console": quiet()}
    whole = pretrain("bert-tiny", data=file, out=tmp_path / "whole", **options)
    run = pretrain("bert-tiny", data=KINDS[kind](rows), out=tmp_path / "run", **options)
    assert_equal_runs(run, whole)
    assert run.recipe.read_text().startswith("# The data was given from Python. ")
    if kind in ("list", "tuple", "generator"):
        run = pretrain("bert-tiny", data=KINDS[kind](texts), out=tmp_path / "texts", **options)
        assert_equal_runs(run, whole)
    with pytest.raises(RecipeError, match="was given from Python and is not in its file"):
        pretrain(run.recipe, out=tmp_path / "again", console=quiet())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_examples_from_python_keeps_the_names_of_its_labels(kind, reviews, tmp_path):
    rows = [json.loads(line) for line in reviews.read_text().splitlines()]
    make, options = KINDS[kind], {"model": "bert-tiny", "console": quiet(), "changes": OF_EXAMPLES}
    held_out = [{**row, "text": f"on {row['text']}"} for row in rows[:9]]
    run = finetune(
        "classification", data=make(rows), validation=make(held_out), out=tmp_path / "run",
        **options,
    )  # fmt: skip
    assert sorted(load(run.path).settings.labels) == ["neg", "pos"]
    metadata = run.read_metadata()
    assert (metadata["train_examples"], metadata["valid_examples"]) == (len(rows), 9)


def test_the_names_of_class_labels_in_lists_are_kept(tmp_path):
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["O", "B-PER"])
    features = {"words": [datasets.Value("string")], "tags": [names], "label": names}
    rows = {"words": [["a", "b"]], "tags": [[0, 1]], "label": [-1]}
    data = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    write_data(data, tmp_path / "data.jsonl", "text")
    stored = json.loads((tmp_path / "data.jsonl").read_text())
    assert stored == {"words": ["a", "b"], "tags": ["O", "B-PER"], "label": None}


@pytest.mark.parametrize("kind", [None, "numpy", "torch", "pandas", "arrow"])
def test_the_format_of_a_data_set_does_not_change_its_rows(tmp_path, kind):
    data = data_set([{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}])
    write_data(data.with_format(kind), tmp_path / "data.jsonl", "text")
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    assert rows == [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}]


def test_numbers_and_missing_values_of_other_libraries_are_stored(tmp_path):
    import numpy as np

    data = frame({"text": ["a", None], "label": [1, 2], "score": [0.5, np.nan]})
    write_data(data, tmp_path / "frame.jsonl", "text")
    lines = [json.loads(line) for line in (tmp_path / "frame.jsonl").read_text().splitlines()]
    assert lines == [
        {"text": "a", "label": 1, "score": 0.5},
        {"text": None, "label": 2, "score": None},
    ]
    row = {"a": np.int64(3), "b": np.arange(2), "c": Decimal("1.5")}
    write_data([row], tmp_path / "numpy.jsonl", "text")
    assert json.loads((tmp_path / "numpy.jsonl").read_text()) == {"a": 3, "b": [0, 1], "c": 1.5}


@pytest.mark.parametrize("labelled", [False, True])
def test_data_that_is_read_once_is_resumed(labelled, text, reviews, tmp_path, monkeypatch):
    if labelled:
        rows = [json.loads(line) for line in reviews.read_text().splitlines()]
    else:
        rows = text.read_text().split("\n\n")[:60]
    changes = OF_EXAMPLES if labelled else settings(steps=4, save_every=1)
    tree = {"model": {"preset": "bert-tiny"}}
    tree |= {"objective": {"kind": "classification"}} if labelled else {}
    options = {"changes": changes, "console": quiet()}
    whole = pretrain(tree, data=rows, out=tmp_path / "whole", **options)

    def start(out, resume):
        if resume:
            return pretrain("", out=out, resume=True, console=quiet())
        return pretrain(tree, data=(row for row in rows), out=out, **options)

    monkeypatch.chdir(tmp_path)
    run = interrupt_and_resume(monkeypatch, start, tmp_path / "run", 0)
    assert_equal_runs(run, whole)
    # The same script again, with --auto-resume's value, does not read the data again.
    again = pretrain(tree, data=iter(()), out=run.path, resume="auto", **options)
    assert_equal_runs(again, whole)


def test_strings_are_paths_if_all_are_or_look_like_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "plain"):
        Path(name).touch()
    for paths in (
        "a.txt", ["a.txt"], ["plain", "a.txt"], [Path("no/file"), "a.txt"], ["missing.txt"],
        ["texts/*"], ["hf:wiki", "-"], "the cat sat", [], (), None, PathList(["the cat sat"]),
    ):  # fmt: skip
        names, rows = resolve_data(paths, "data")
        assert rows is None, paths
        assert all(isinstance(name, str) for name in names)
    for texts in (
        ["the cat sat"], ["the cat sat", "a"], ["\u732b\u5750\u7740\u3002"], ["see a/b", "a.b"],
        ["x" * 5000], ["line\nline"], [""],
    ):  # fmt: skip
        names, rows = resolve_data(texts, "data")
        assert (names, rows) == (("python:data.jsonl",), texts)
    with pytest.raises(DataError, match=r'data 1 is "plain", the name of a file, but not all'):
        resolve_data(["the cat sat", "plain"], "data")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([("a text", "label")], "data 0 is of type tuple: give strings or dictionaries"),
        (["a text here", 3], "data 1 is of type int"),
        ([{"text": "a"}, {"text": object()}], "data 1 cannot be stored as JSON: .*type object"),
        ([{"text": b"a"}], "data 0 cannot be stored as JSON: .*type bytes"),
        ({"train": [], "test": []}, r'data is a dictionary of train, test: give .*data\["train"\]'),
        (3, "data is of type int: give paths, or an iterable"),
        (iter(()), "data has no element"),
    ],
)
def test_what_is_no_data_is_one_error(data, problem, tmp_path):
    with pytest.raises(TriviumError, match=problem):
        pretrain("bert-tiny", data=data, out=tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()
