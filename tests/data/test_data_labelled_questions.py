from __future__ import annotations

import json

import pytest

from trivium.data.labelled import Answer, Question, num_moved, read_questions
from trivium.errors import DataError

CONTEXT = "The cat 猫 sat. The cat ran. 🦉 Été"


def squad(*asked, context=CONTEXT):
    paragraphs = [{"context": context, "qas": list(asked)}]
    return {"version": "v2.0", "data": [{"title": "Cats", "paragraphs": paragraphs}]}


def asked(identity, *answers, **more):
    written = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": identity, "question": f"Question {identity}?", "answers": written, **more}


def write(path, value, **options):
    path.write_text(json.dumps(value, **options), encoding="utf-8")
    return str(path)


def write_lines(path, *records):
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


@pytest.mark.parametrize("indent", [None, 1])
def test_squad(tmp_path, indent):
    content = squad(
        asked("a", ("cat", 4), ("The cat", 15)),
        asked("b", is_impossible=True, plausible_answers=[{"text": "cat", "answer_start": 4}]),
        asked("c"),
        asked("d", ("Été", CONTEXT.index("É"))),
    )
    path = write(tmp_path / "a.json", content, indent=indent)
    found = read_questions([path])
    assert found[0] == Question(
        "a",
        "Question a?",
        CONTEXT,
        (Answer("cat", 4), Answer("The cat", 15)),
        f"{path}, question a",
    )
    assert [len(one.answers) for one in found] == [2, 0, 0, 1]
    for one in found:
        for answer in one.answers:
            assert CONTEXT[answer.start : answer.start + len(answer.text)] == answer.text
    assert num_moved(found) == 0
    assert found[0].context is found[3].context
    assert not any(one.answers for one in read_questions(path, require_answers=False))


@pytest.mark.parametrize(
    ("start", "wanted", "moved"),
    [(4, 4, 0), (19, 19, 0), (5, 4, 1), (13, 19, 1), (-1, 4, 1), (900, 19, 1), (None, 4, 0)],
)
def test_an_answer_goes_to_its_nearest_place(tmp_path, start, wanted, moved):
    path = write(tmp_path / "a.json", squad(asked("a", ("cat", start))))
    found = read_questions(path)
    assert found[0].answers == (Answer("cat", wanted),)
    assert num_moved(found) == moved


@pytest.mark.parametrize(
    "answers",
    [
        {"answers": [{"text": "cat", "answer_start": 19}]},
        {"answers": [{"text": "cat", "start": 19}]},
        {"answers": {"text": ["cat"], "answer_start": [19]}},
        {"answer": "cat", "answer_start": 19},
        {"answers": ["cat ran"]},
    ],
)
@pytest.mark.parametrize("layout", ["jsonl", "json"])
def test_records(tmp_path, answers, layout):
    record = {"question": "Who?", "context": CONTEXT, **answers}
    if layout == "json":
        path = write(tmp_path / "a.json", [record])
    else:
        path = write_lines(tmp_path / "a.jsonl", record, {**record, "id": 7})
    found = read_questions(path)
    assert found[0].answers[0].start == 19
    assert found[0].id == found[0].where
    assert [one.id for one in found[1:]] in ([], ["7"])
    nested = write(tmp_path / "b.json", {"data": [record]})
    assert read_questions(nested)[0].answers == found[0].answers


def test_records_without_an_answer(tmp_path):
    record = {"query": "Who?", "passage": CONTEXT}
    path = write_lines(
        tmp_path / "a.jsonl",
        {**record, "answers": []},
        {**record, "answers": {"text": [], "answer_start": []}},
        {**record, "answer": None},
        {**record, "answer": "dog", "is_impossible": True},
        {**record, "is_impossible": True},
    )
    assert [one.answers for one in read_questions(path)] == [()] * 5
    table = tmp_path / "a.csv"
    table.write_text("question,context,answer,answer_start\nWho?,a cat,cat,2\nWhy?,a cat,,\n")
    assert [one.answers for one in read_questions(table)] == [(Answer("cat", 2),), ()]
    path = write_lines(tmp_path / "b.jsonl", record)
    assert read_questions(path, require_answers=False)[0].answers == ()
    with pytest.raises(DataError, match="line 1 has no answers"):
        read_questions(path)


def test_named_fields(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"q": "Who?", "c": CONTEXT, "a": {"best": "cat"}})
    names = {"question_field": "q", "context_field": "c", "answers_field": "a.best"}
    assert read_questions(path, **names)[0].answers == (Answer("cat", 4),)
    with pytest.raises(DataError, match=r'no field "a.worst"; it has q, c, a.best'):
        read_questions(path, **{**names, "answers_field": "a.worst"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (squad(asked("a", ("dog", 4))), r'answer "dog" of .*a.json, question a is not in its cont'),
        (squad(asked("a", ("Cat", 4))), r'"Cat" of .* is not in its context.*letter by letter'),
        (squad(asked("a", (" ", 3))), r"answer of .*question a is blank"),
        (squad(asked("a", ("cat", "x"))), r"start of an answer of .*question a is x, not a number"),
        (squad(asked("a"), asked("a")), r'id "a" of .* is also that of'),
        (squad({"id": "a", "question": "?"}), r'question a has no field "answers"; it has id, q'),
        (squad({"question": "?"}), r'article "Cats", paragraph 1, question 1 has no field "id"'),
        (squad(asked("a"), context=" "), r'"context" of .*paragraph 1 is blank'),
        ({"data": {}}, r'"data" of .* is an object, not a list'),
        ({"data": [3]}, r"item 1 of its data is a number, not an object"),
        ({"data": [{"paragraphs": 3}]}, r'"paragraphs" of .* is a number, not a list'),
        ([{"question": "?", "context": " ", "answers": []}], r'"context" of .*item 1 is blank'),
        ([{"question": "?", "answers": []}], r"item 1 has no context: its fields are question"),
        (
            [{"question": "?", "context": "c", "answers": {"text": ["c"], "answer_start": [0, 1]}}],
            r"item 1 are 1 texts, 2 starts",
        ),
        ("text", r"neither SQuAD JSON nor records"),
    ],
)
def test_broken_questions_are_one_message(tmp_path, content, message):
    path = write(tmp_path / "a.json", content)
    with pytest.raises(DataError, match=message):
        read_questions(path)


def test_broken_json_names_the_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"version": "1.1",\n"data": [\n{"paragraphs" []}]}')
    with pytest.raises(DataError, match=r"a.json, line 3 is not valid JSON"):
        read_questions(path)
