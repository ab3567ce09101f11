"""What is wrong with examples, models and recipes: one message with file and line, no run left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from labelled_examples import classes, conll, squad, tagged, write_lines

import trivium
from trivium.cli import main

Files = Callable[[str, object], str]
LINES = ["the man saw a house", "our old town", "it left then"]


@pytest.fixture
def file(tmp_path: Path) -> Files:
    """Writes a file of lines, of JSON lines or of JSON; its path."""

    def write(name: str, content: object) -> str:
        path = tmp_path / name
        if isinstance(content, dict):
            path.write_text(json.dumps(content), encoding="utf-8")
        else:
            assert isinstance(content, list)
            write_lines(path, content)
        return str(path)

    return write


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, task: str, *arguments: str) -> str:
    """The one message of a fine-tuning that fails, and that nothing is left of it."""
    out, before = tmp_path / "run", sorted(tmp_path.rglob("*"))
    given = ["finetune", task, "--out", str(out), *arguments]
    assert main([*given, "--set", "train.steps=2"]) == 1
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert printed.splitlines()[-1] == errors[0]
    assert sorted(tmp_path.rglob("*")) == before
    return errors[0]


def test_missing_labels(capsys, tmp_path: Path, file: Files) -> None:
    rows = classes(20)
    rows[6].pop("label")
    message = refused(
        capsys, tmp_path, "classification",
        "--model", "bert-tiny", "--data", file("a.jsonl", rows),
    )  # fmt: skip
    assert "a.jsonl, line 7" in message
    assert "label" in message


def test_one_label(capsys, tmp_path: Path, file: Files) -> None:
    rows = [{**row, "label": "warm"} for row in classes(20)]
    message = refused(
        capsys, tmp_path, "classification",
        "--model", "bert-tiny", "--data", file("a.jsonl", rows),
    )  # fmt: skip
    assert 'have the label "warm"' in message


def test_an_unknown_label_at_evaluation(capsys, tmp_path: Path, file: Files) -> None:
    other = classes(9)
    other[4]["label"] = "warn"
    message = refused(
        capsys, tmp_path, "classification", "--model", "bert-tiny",
        "--data", file("train.jsonl", classes(20)), "--validation", file("valid.jsonl", other),
    )  # fmt: skip
    assert "valid.jsonl, line 5" in message
    assert '"warn"' in message
    assert 'Did you mean "warm"?' in message


def test_an_unknown_tag_at_evaluation(capsys, tmp_path: Path, file: Files) -> None:
    valid = ["Ada B-PER", "saw O", "", "Oslo B-CITY", ""]
    message = refused(
        capsys, tmp_path, "tagging", "--model", "bert-tiny",
        "--data", file("a.conll", conll(tagged(20))), "--validation", file("b.conll", valid),
    )  # fmt: skip
    assert "b.conll, line 4" in message
    assert '"B-CITY"' in message


def test_misaligned_files(capsys, tmp_path: Path, file: Files) -> None:
    message = refused(
        capsys, tmp_path, "translation", "--model", "transformer-tiny",
        "--data", file("a.en", LINES), "--data", file("a.fr", LINES[:2]),
    )  # fmt: skip
    assert "a.en has 3 lines and" in message
    assert "a.fr has 2" in message


def test_an_answer_that_is_not_in_its_context(capsys, tmp_path: Path, file: Files) -> None:
    data = squad(20)
    data["data"][0]["paragraphs"][3]["qas"][0]["answers"][0]["text"] = "Nobody"
    message = refused(
        capsys, tmp_path, "qa", "--model", "bert-tiny", "--data", file("a.json", data)
    )
    assert "a.json" in message
    assert '"Nobody"' in message


@pytest.mark.parametrize("broken", ["Ada", "Ada B-PER x"])
def test_a_line_with_another_number_of_columns(
    broken: str, capsys, tmp_path: Path, file: Files
) -> None:
    lines = [*conll(tagged(20)), broken, "saw O", ""]
    message = refused(
        capsys, tmp_path, "tagging", "--model", "bert-tiny", "--data", file("a.conll", lines)
    )
    assert f"a.conll, line {lines.index(broken) + 1}" in message


def test_fewer_tags_than_words(capsys, tmp_path: Path, file: Files) -> None:
    rows = tagged(20)
    rows[2]["tags"].pop()
    message = refused(
        capsys, tmp_path, "tagging", "--model", "bert-tiny", "--data", file("a.jsonl", rows)
    )
    assert "a.jsonl, line 3" in message


@pytest.mark.parametrize(
    ("task", "preset", "told"),
    [
        ("tagging", "t5-tiny", "take an encoder"),
        ("qa", "gpt2-tiny", "take an encoder"),
        ("translation", "bert-tiny", "needs an encoder and a decoder"),
        ("lm", "t5-tiny", "needs a decoder"),
        ("classification", "ngram-tiny", "take an encoder"),
    ],
)
def test_a_preset_that_cannot_do_the_task(
    task: str, preset: str, told: str, capsys, tmp_path: Path, file: Files
) -> None:
    data = {
        "tagging": file("a.conll", conll(tagged(20))),
        "qa": file("a.json", squad(20)),
        "translation": file("a.tsv", [f"{n} one\t{n} two" for n in range(20)]),
        "lm": file("a.jsonl", [{"prompt": f"ask {n}", "response": "yes"} for n in range(20)]),
        "classification": file("b.jsonl", classes(20)),
    }[task]
    assert told in refused(capsys, tmp_path, task, "--model", preset, "--data", data)


def test_a_model_without_a_tokenizer(capsys, tmp_path: Path, file: Files) -> None:
    spec = trivium.presets["bert-tiny"].replace(vocab_size=64)
    trivium.LanguageModel(spec, trivium.build(spec)).save(tmp_path / "bare")
    message = refused(
        capsys, tmp_path, "classification",
        "--model", str(tmp_path / "bare"), "--data", file("a.jsonl", classes(20)),
    )  # fmt: skip
    assert "has no tokenizer" in message


def test_a_tokenizer_beside_that_of_the_model(capsys, tmp_path: Path, file: Files) -> None:
    data = file("a.jsonl", classes(20))
    start = tmp_path / "start"
    assert not main(
        ["finetune", "classification", "--model", "bert-tiny", "--data", data, "--out", str(start)]
    )
    capsys.readouterr()
    message = refused(
        capsys, tmp_path, "classification",
        *("--model", str(start), "--data", data, "--set", "tokenizer.vocab_size=99"),
    )  # fmt: skip
    assert "leave [tokenizer] out" in message


def test_a_model_there_is_not(capsys, tmp_path: Path, file: Files) -> None:
    message = refused(
        capsys, tmp_path, "classification",
        "--model", "brt-tiny", "--data", file("a.jsonl", classes(20)),
    )  # fmt: skip
    assert 'Did you mean "bert-tiny"?' in message


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "bert-tiny"], "give --data FILE"),
        (["--data", "missing.jsonl", "--model", "bert-tiny"], "missing.jsonl"),
        (["--data", "missing.jsonl"], "say which model"),
        (["--model", "bert-tiny", "--set", "task.poling=mean"], 'Did you mean "pooling"?'),
        (["--model", "bert-tiny", "--set", "task.pooling=max"], "task.pooling"),
    ],
)
def test_wrong_recipes(arguments: list[str], told: str, capsys, tmp_path: Path) -> None:
    assert told in refused(capsys, tmp_path, "classification", *arguments)


@pytest.mark.parametrize(
    ("task", "key"),
    [("tagging", "pooling=mean"), ("qa", "beams=2"), ("classification", "stride=9")],
)
def test_a_key_of_another_task(task: str, key: str, capsys, tmp_path: Path) -> None:
    message = refused(capsys, tmp_path, task, "--model", "bert-tiny", "--set", f"task.{key}")
    assert f"{key.split('=')[0]} means nothing to {task}" in message


def test_a_task_there_is_not(capsys, tmp_path: Path) -> None:
    message = refused(capsys, tmp_path, "clasification", "--model", "bert-tiny")
    assert '"classification"' in message.replace("'", '"')


def test_an_empty_file(capsys, tmp_path: Path, file: Files) -> None:
    message = refused(
        capsys, tmp_path, "classification", "--model", "bert-tiny", "--data", file("a.jsonl", [])
    )
    assert "a.jsonl" in message


@pytest.mark.parametrize(
    ("task", "preset", "library"),
    [
        ("classification", "bert-tiny", "sklearn"),
        ("tagging", "bert-tiny", "seqeval.metrics"),
        ("translation", "transformer-tiny", "sacrebleu.metrics.bleu"),
        ("summarization", "t5-tiny", "rouge_score.rouge_scorer"),
    ],
)
def test_a_missing_library_of_metrics(
    task: str, preset: str, library: str, capsys, tmp_path: Path, file: Files, monkeypatch
) -> None:
    """Before anything is trained."""
    data = {
        "classification": ("a.jsonl", classes(20)),
        "tagging": ("a.conll", conll(tagged(20))),
    }.get(task, ("a.tsv", [f"{n} one\t{n} two" for n in range(20)]))
    path = file(*data)
    monkeypatch.setitem(sys.modules, library, None)
    message = refused(
        capsys, tmp_path, task, "--model", preset, "--data", path,
        "--set", "tokenizer.kind=whitespace",
    )  # fmt: skip
    assert "pip install 'trivium[metrics]'" in message


def test_a_run_that_is_there_stays(capsys, tmp_path: Path, file: Files) -> None:
    """With --overwrite too, where the new one cannot begin."""
    data = file("a.jsonl", classes(20))
    given = ["finetune", "classification", "--model", "bert-tiny", "--data", data]
    out = tmp_path / "run"
    assert not main([*given, "--out", str(out), "--set", "train.steps=1"])
    capsys.readouterr()
    assert "already holds a run" in refused(
        capsys, tmp_path, "classification", "--model", "bert-tiny", "--data", data
    )
    bad = file("b.jsonl", [{"text": "a", "label": "b"}] * 5)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    refused(
        capsys, tmp_path, "classification", "--model", "bert-tiny", "--data", bad, "--overwrite"
    )
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert not main([*given, "--out", str(out), "--overwrite", "--set", "train.steps=1"])
