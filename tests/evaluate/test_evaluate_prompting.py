"""Few-shot prompting: what the prompt is, how options are compared, and accuracy."""

from __future__ import annotations

import json

import pytest
from counting_models import counting_model
from scipy.stats import binomtest

import trivium.cli.prompt as prompt_command
from trivium.cli import main
from trivium.data.records import read_records
from trivium.errors import DataError, SpecError, TriviumError
from trivium.evaluate.prompting import build_prompts, evaluate_few_shot, truncate_left

LOGITS = {"good": 3.0, "bad": 1.0, "a": 2.0, "b": 2.5}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prompts(folder, *rows, **options):
    """The questions of some rows and their prompts."""
    pairs = list(build_prompts(read_records(write(folder / "x.jsonl", rows)), **options))
    return [one for one, _ in pairs], [text for _, text in pairs]


def prompt(lm, path, template, *, options=(), **how):
    filled = build_prompts(read_records(path), template=template, options=options)
    return evaluate_few_shot(lm, list(filled), **how)


def test_prompts_have_solved_examples_of_other_questions(tmp_path):
    rows = [{"text": f"t{i}", "label": i % 2} for i in range(7)]
    how = {"template": "{text} is {answer}.", "options": ["bad", "good"]}
    questions, texts = prompts(tmp_path, *rows, shots=3, seed=1, **how)
    assert (questions[1].answer, questions[1].options) == ("good", ("bad", "good"))
    *shots, last = texts[2].split("\n\n")
    assert last == "t2 is "
    assert len(set(shots)) == 3
    assert "t2 is bad." not in shots
    assert all(shot in [f"t{i} is {('bad', 'good')[i % 2]}." for i in range(7)] for shot in shots)
    assert prompts(tmp_path, *rows, shots=3, seed=1, **how)[1] == texts
    assert prompts(tmp_path, *rows, shots=3, seed=2, **how)[1] != texts
    pool = write(tmp_path / "pool.jsonl", rows[3:4])
    _, texts = prompts(tmp_path, *rows, shots=1, examples=read_records(pool), **how)
    assert texts[0] == "t3 is good.\n\nt0 is "
    _, told = prompts(
        tmp_path, *rows, shots=1, examples=read_records(pool), instruction="Judge.", **how
    )
    assert told == [f"Judge.\n\n{text}" for text in texts]
    with pytest.raises(DataError, match="7 shots, but there are only 6 examples"):
        prompts(tmp_path, *rows, shots=7)


def test_labels_are_the_classes_of_fine_tuning(tmp_path):
    values = [1, 1.0, "1", True, "TRUE", "caf\u00e9", "cafe\u0301"]
    rows = [{"text": str(number), "label": value} for number, value in enumerate(values)]
    questions, _ = prompts(tmp_path, *rows)
    assert [one.answer for one in questions] == ["1"] * 3 + ["true"] * 2 + ["caf\u00e9"] * 2
    assert {one.options for one in questions} == {("1", "caf\u00e9", "true")}
    for column in ("label", "answer"):
        for value in (None, float("nan")):
            with pytest.raises(DataError, match=r"line 2 is (null|NaN)\. Fill it in"):
                prompts(tmp_path, rows[0], {"text": "a", column: value})


def test_questions_without_a_template_have_a_line_per_column(tmp_path):
    (one,), _ = prompts(tmp_path, {"question": "why?", "answer": "so"})
    assert (one.before, one.answer, one.options) == ("Question: why?\nAnswer: ", "so", ())
    (one,), _ = prompts(tmp_path, {"goal": "x", "choices": ["a", "b"], "label": "1"})
    assert (one.before, one.answer, one.options) == ("Goal: x\nAnswer: ", "b", ("a", "b"))
    (one, _), _ = prompts(tmp_path, {"text": "x", "label": "p"}, {"text": "y", "label": "q"})
    assert one.options == ("p", "q")


def test_hostile_questions_are_one_clear_error(tmp_path):
    for row, options, message in (
        ({"text": "x"}, {}, "has no column for the answer .* it has .text"),
        ({"text": "x", "label": 2}, {"options": ["a", "b"]}, '"2" is none of the options a, b'),
        ({"text": "x", "label": "c"}, {"options": ["a", "b"]}, "none of the options"),
        ({"text": "x", "label": "c"}, {"template": "{texts} {answer}"}, 'no column "texts"'),
        ({"text": "x", "label": "c"}, {"template": "x"}, "must have {answer} in it once"),
    ):
        with pytest.raises(DataError, match=message):
            prompts(tmp_path, row, **options)


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_accuracy_of_every_family(family, tmp_path):
    rows = [{"text": "a", "label": label} for label in (1, 1, 0, 1)]
    path = write(tmp_path / "a.jsonl", rows)
    how = {"template": "{text} {answer}", "options": ["bad", "good"]}
    lm = counting_model(family, LOGITS)
    metrics = prompt(lm, path, **how)
    assert metrics.values["accuracy"] == 0.75
    assert metrics.values["majority"] == 0.75
    assert [row["predicted"] for row in metrics.predictions] == ["good"] * 4
    assert metrics.predictions[2]["right"] is False
    assert next(build_prompts(read_records(path), shots=1))[1].count("Answer:") == 2
    with pytest.raises(DataError, match=r"no record|no question"):
        prompt(lm, write(tmp_path / "empty.jsonl", []), **how)


def test_a_share_of_few_questions_is_uncertain(tmp_path, capsys, monkeypatch):
    lm = counting_model("decoder", LOGITS)
    how = {"template": "{text} {answer}", "options": ["bad", "good"]}
    for labels in ([1], [0, 0], [1, 1, 0, 1] * 30):
        rows = [{"text": "a", "label": label} for label in labels]
        values = prompt(lm, write(tmp_path / "a.jsonl", rows), **how).values
        interval = binomtest(sum(labels), len(labels)).proportion_ci(method="wilson")
        expected = pytest.approx(tuple(interval), rel=1e-4, abs=1e-9)
        assert (values["accuracy_low"], values["accuracy_high"]) == expected
    assert values["accuracy_low"] > 0.65
    path = write(tmp_path / "a.jsonl", [{"text": "a", "label": 1}])
    monkeypatch.setattr(prompt_command, "load", lambda *_, **__: lm)
    how = ["--options", "bad,good", "--template", "{text} {answer}"]
    assert main(["prompt", "runs/x", str(path), *how]) == 0
    assert "(1 question: 95 % confidence 0.21 to 1.00)" in capsys.readouterr().out


def test_options_are_compared_in_all_per_token_or_per_byte(tmp_path):
    lm = counting_model("decoder", LOGITS)
    for choices, normalise, best in (
        (["bad", "good bad"], "sum", "bad"),
        (["bad", "good bad"], "token", "good bad"),
        (["good", "good good"], "sum", "good"),
        (["good", "good good"], "byte", "good good"),
    ):
        path = write(tmp_path / "a.jsonl", [{"q": "a", "choices": choices, "label": 1}])
        metrics = prompt(lm, path, "{q} {answer}", normalise=normalise)
        assert metrics.predictions[0]["predicted"] == best


def test_answers_are_generated_where_there_are_no_options(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "a", "answer": "good  good"}])
    how = {"template": "{question} {answer}", "max_new_tokens": 2}
    seen = []
    metrics = prompt(counting_model("decoder", LOGITS), path, **how, progress=seen.append)
    assert metrics.values["accuracy"] == 1.0
    assert (seen, metrics.predictions[0]["predicted"].split()) == ([1], ["good", "good"])
    with pytest.raises(SpecError, match="cannot generate"):
        prompt(counting_model("encoder", LOGITS), path, **how)


def test_prompts_that_are_too_long_lose_their_left():
    lm = counting_model("decoder", LOGITS)
    text = "a b " * 100
    rest = truncate_left(lm, text, 10)
    assert text.endswith(rest)
    ids = lm.tokenizer.encode(rest, add_special_tokens=False).ids
    assert len(ids) == lm.spec.max_length - 10 - len(lm.tokenizer.prefix_ids)
    assert truncate_left(lm, "a b", 10) == "a b"
    with pytest.raises(TriviumError, match="no room for a prompt"):
        truncate_left(lm, "a", 100)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(0, "3"), (1, "0"), (3, "2"), (1.0, "0"), ("3", "3"), ("2", "2"), ("0", "0"), ("B", "0")],
)
def test_an_integer_beside_choices_is_an_index_and_a_string_is_a_choice(tmp_path, answer, expected):
    """Choices of digits are where both could be meant."""
    row = {"question": "x", "choices": ["3", "0", "1", "2"], "answer": answer}
    (one,), _ = prompts(tmp_path, row)
    assert (one.answer, one.options) == (expected, ("3", "0", "1", "2"))
    row["choices"] = [3, 0, 1, 2]
    (one,), _ = prompts(tmp_path, row)
    assert (one.answer, one.options) == (expected, ("3", "0", "1", "2"))


def test_letters_and_indices_name_choices_that_are_no_choice_themselves(tmp_path):
    for choices, answer, expected in (
        (["B", "A"], "A", "A"),
        (["cat", "dog"], "A", "cat"),
        (["cat", "dog"], "1", "dog"),
        (["cat", "dog"], "dog", "dog"),
    ):
        (one,), _ = prompts(tmp_path, {"q": "x", "choices": choices, "answer": answer})
        assert one.answer == expected
    for answer in (4, -1, "4", "E", "e", True, "cow"):
        with pytest.raises(DataError, match="is none of the options 3, 0, 1, 2"):
            prompts(tmp_path, {"q": "x", "choices": ["3", "0", "1", "2"], "answer": answer})
    with pytest.raises(DataError, match=r'"choices" of .* is a string: give a list'):
        prompts(tmp_path, {"q": "x", "choices": "a, b", "answer": "a"})


def test_in_a_table_what_looks_like_an_integer_beside_choices_is_an_index(tmp_path):
    path = tmp_path / "a.csv"
    cells = '"[""3"", ""0"", ""1""]"'
    path.write_text(f"question,choices,answer\nx,{cells},1\ny,{cells},C\n", encoding="utf-8")
    answers = [one.answer for one, _ in build_prompts(read_records(path))]
    assert answers == ["0", "1"]
    # Without choices the words given are texts first.
    path.write_text("question,label\nx,2\ny,1\n", encoding="utf-8")
    filled = build_prompts(read_records(path), options=["1", "2", "3"])
    assert [one.answer for one, _ in filled] == ["2", "1"]
