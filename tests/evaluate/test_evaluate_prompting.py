"""Few-shot prompting: what the prompt is, how options are compared, and accuracy."""

from __future__ import annotations

import json

import pytest
from counting_models import counting_model

from trivium.data.records import Record
from trivium.errors import DataError, SpecError, TriviumError
from trivium.evaluate.prompting import FewShot, prompt_of, read_questions
from trivium.evaluate.truncation import truncate_left
from trivium.workflows.prompt import first_prompt, prompt

LOGITS = {"good": 3.0, "bad": 1.0, "a": 2.0, "b": 2.5}


def records(*rows):
    return [Record(row, f"x.jsonl, line {i}") for i, row in enumerate(rows, start=1)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_prompts_have_solved_examples_of_other_questions():
    rows = records(*({"text": f"t{i}", "label": i % 2} for i in range(7)))
    how = FewShot(shots=3, template="{text} is {answer}.", options=["bad", "good"], seed=1)
    questions = read_questions(rows, how)
    assert (questions[1].answer, questions[1].options) == ("good", ("bad", "good"))
    text = prompt_of(questions, 2, how)
    *shots, last = text.split("\n\n")
    assert last == "t2 is "
    assert len(set(shots)) == 3
    assert "t2 is bad." not in shots
    assert all(shot in [f"t{i} is {('bad', 'good')[i % 2]}." for i in range(7)] for shot in shots)
    assert prompt_of(questions, 2, how) == text != prompt_of(questions, 2, FewShot(3, 2))
    assert prompt_of(questions, 0, FewShot(1), questions[3:4]) == "t3 is good.\n\nt0 is "
    with pytest.raises(DataError, match="7 shots, but there are only 6 examples"):
        prompt_of(questions, 0, FewShot(7))


def test_questions_without_a_template_have_a_line_per_column():
    (one,) = read_questions(records({"question": "why?", "answer": "so"}), FewShot())
    assert (one.before, one.answer, one.options) == ("Question: why?\nAnswer: ", "so", ())
    (one,) = read_questions(records({"goal": "x", "choices": ["a", "b"], "label": "1"}), FewShot())
    assert (one.before, one.answer, one.options) == ("Goal: x\nAnswer: ", "b", ("a", "b"))
    one, _ = read_questions(
        records({"text": "x", "label": "p"}, {"text": "y", "label": "q"}), FewShot()
    )
    assert one.options == ("p", "q")


def test_hostile_questions_are_one_clear_error():
    for row, options, message in (
        ({"text": "x"}, {}, "has no answer: its columns are text"),
        ({"text": "x", "label": 2}, {"options": ["a", "b"]}, '"2" is none of the options a, b'),
        ({"text": "x", "label": "c"}, {"options": ["a", "b"]}, "none of the options"),
        ({"text": "x", "label": "c"}, {"template": "{texts} {answer}"}, 'no column "texts"'),
    ):
        with pytest.raises(DataError, match=message):
            read_questions(records(row), FewShot(**options))
    for options, message in (
        ({"shots": -1}, "0 or more"),
        ({"normalise": "word"}, "choose sum, token or byte"),
        ({"template": "x"}, "must have {answer} in it once"),
    ):
        with pytest.raises(TriviumError, match=message):
            FewShot(**options)


def test_accuracy_of_every_family(tmp_path):
    rows = [{"text": "a", "label": label} for label in (1, 1, 0, 1)]
    path = write(tmp_path / "a.jsonl", rows)
    how = FewShot(options=["bad", "good"], template="{text} {answer}")
    for family in ("decoder", "encoder", "encoder-decoder"):
        lm = counting_model(family, LOGITS)
        metrics = prompt(lm, path, how)
        assert metrics.values["accuracy"] == 0.75
        assert metrics.values["majority"] == 0.75
        assert metrics.values["stderr"] == pytest.approx(0.25)
        assert (len(metrics.mistakes), metrics.mistakes[0].predicted) == (1, "good")
    assert metrics.predictions[2]["right"] is False
    assert prompt(lm, path, how, limit=2).values["accuracy"] == 1.0
    assert first_prompt(path, FewShot(shots=1, options=["bad", "good"])).count("Answer:") == 2
    with pytest.raises(DataError, match=r"no record|no question"):
        prompt(lm, write(tmp_path / "empty.jsonl", []))


def test_options_are_compared_in_all_per_token_or_per_byte(tmp_path):
    lm = counting_model("decoder", LOGITS)
    for choices, normalise, best in (
        (["bad", "good bad"], "sum", "bad"),
        (["bad", "good bad"], "token", "good bad"),
        (["good", "good good"], "sum", "good"),
        (["good", "good good"], "byte", "good good"),
    ):
        path = write(tmp_path / "a.jsonl", [{"q": "a", "choices": choices, "label": 1}])
        metrics = prompt(lm, path, FewShot(normalise=normalise, template="{q} {answer}"))
        assert metrics.predictions[0]["predicted"] == best


def test_answers_are_generated_where_there_are_no_options(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "a", "answer": "good  good"}])
    how = FewShot(max_new_tokens=2, template="{question} {answer}")
    seen = []
    metrics = prompt(
        counting_model("decoder", LOGITS), path, how, progress=lambda *all: seen.append(all)
    )
    assert metrics.values["accuracy"] == 1.0
    assert (seen[0][0], seen[0][2].split(), seen[0][3]) == (1, ["good", "good"], True)
    with pytest.raises(SpecError, match="this model generates no text"):
        prompt(counting_model("encoder", LOGITS), path, how)


def test_prompts_that_are_too_long_lose_their_left():
    lm = counting_model("decoder", LOGITS)
    text = "a b " * 100
    rest = truncate_left(lm, text, 10)
    assert text.endswith(rest)
    ids = lm.tokenizer.encode(rest, add_special_tokens=False).ids
    assert len(ids) == lm.spec.max_length - 10 - len(lm.tokenizer.prefix_ids)
    assert truncate_left(lm, "a b", 10) == "a b"
    with pytest.raises(TriviumError, match="no prompt fits"):
        truncate_left(lm, "a", 100)
