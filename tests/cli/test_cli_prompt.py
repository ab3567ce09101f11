"""`trivium prompt`: a file of questions in, an accuracy out."""

from __future__ import annotations

import json

import pytest
from counting_models import counting_model

from trivium.cli import VERBS, main

LOGITS = {"good": 3.0, "bad": 1.0, "Label:": 0.0, "a": 2.0, "b": 2.5, "It": 0.1, "was": 0.2}
REVIEWS = [{"text": text, "label": i % 2} for i, text in enumerate(["a", "b", "a a", "a b", "b a"])]


@pytest.fixture(autouse=True)
def verb(monkeypatch):
    monkeypatch.setitem(VERBS, "prompt", ("trivium.cli.prompt", "Ask with examples."))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return str(counting_model("decoder", LOGITS).save(tmp_path_factory.mktemp("decoder")))


@pytest.fixture
def task(tmp_path) -> str:
    path = tmp_path / "reviews.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in REVIEWS), encoding="utf-8")
    return str(path)


def test_accuracy_with_its_interval_and_baseline(decoder, task, capsys):
    arguments = ["--task", task, "--shots", "2", "--options", "bad, good"]
    assert main(["prompt", decoder, *arguments]) == 0
    out = capsys.readouterr().out
    assert "5 questions (classification), 2 shots" in out
    assert "accuracy  0.400  (95 % interval 0.118 to 0.769)" in out
    assert "majority  0.600" in out
    assert "by token" in out


def test_json_has_a_line_a_question_and_one_for_all(decoder, task, capsys):
    arguments = ["--task", task, "--options", "bad,good", "--limit", "3", "--json"]
    assert main(["prompt", decoder, *arguments]) == 0
    *answers, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert [answer["predicted"] for answer in answers] == ["good"] * 3
    assert [answer["right"] for answer in answers] == [False, True, False]
    assert answers[2]["where"].endswith("reviews.jsonl, line 3")
    assert [option["option"] for option in answers[0]["options"]] == ["bad", "good"]
    assert (result["count"], result["accuracy"]) == (3, 1 / 3)


def test_show_prints_the_first_prompt_and_needs_no_model(task, capsys):
    arguments = [
        "--task",
        task,
        "--shots",
        "1",
        "--show",
        "--template",
        r"{text}\nIt was {answer}.",
    ]
    assert main(["prompt", "runs/nowhere", *arguments]) == 0
    shot, asked = capsys.readouterr().out.split("\n\n")
    assert asked == "a\nIt was \u2588.\n"
    assert shot.endswith((".",))
    assert "\nIt was " in shot


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--shots", "5"], "5 shots are asked for"),
        (["--options", "bad,"], "has an empty word"),
        (["--options", "bad"], "give 2 with --options"),
        (["--normalise", "word"], "one of sum, token, byte"),
        (["--template", "{text}"], "must have {answer} in it once"),
        (["--template", "{txt}{answer}"], 'Did you mean "text"'),
    ],
)
def test_what_cannot_be_asked(decoder, task, arguments, what, capsys):
    assert main(["prompt", decoder, "--task", task, *arguments]) == 1
    found = capsys.readouterr()
    assert what in found.err
    assert (found.out, found.err.count("\n")) == ("", 1)
