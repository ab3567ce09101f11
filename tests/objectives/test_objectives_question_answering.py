"""Question answering: SQuAD files, spans of tokens, SQuAD's metric, and overfitting."""

from __future__ import annotations

import json

import pytest
import torch
from overfit_tasks import SPECIALS, overfit, untrained
from torch.nn import functional as F

from trivium.errors import DataError, RecipeError
from trivium.objectives import to_device
from trivium.objectives.question_answering import Question, QuestionAnswering, compute_squad_scores
from trivium.presets import presets
from trivium.spec import ScalarMix, SpanHead, TaggerHead
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

CONTEXT = "Ada wrote the first program in London"


def read(folder, name: str, value, **options):
    content = value if isinstance(value, str) else json.dumps(value)
    (folder / name).write_text(content, encoding="utf-8")
    return list(QuestionAnswering(**options).read([str(folder / name)]))


def squad(*qas, context=CONTEXT):
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(qas)}]}]}


def qa(identity="q1", **more):
    answers = [{"text": "Ada", "answer_start": 0}]
    return {"id": identity, "question": "who?", "answers": answers, **more}


def questions(*, impossible: bool = False):
    rows = [
        ("who wrote", CONTEXT, "Ada"),
        ("in which city did she write", CONTEXT, "London"),
        ("who left", "then Grace left the old town", "Grace"),
        ("what did she leave", "then Grace left the old town", "the old town"),
    ]
    found = [
        Question(str(i), question, context, ((text, context.index(text)),), f"x, question {i}")
        for i, (question, context, text) in enumerate(rows)
    ]
    if impossible:
        found.append(Question("no", "why why why", CONTEXT, (), "x, question no"))
    return found


def test_reads_squad_and_records(tmp_path):
    plain, impossible = read(
        tmp_path, "a.json", squad(qa(), qa("q2", is_impossible=True, plausible_answers=[1]))
    )
    assert (plain.answers, plain.id, plain.where[-17:]) == (
        (("Ada", 0),),
        "q1",
        "a.json, question q1"[-17:],
    )
    assert impossible.answers == ()
    blank = read(tmp_path, "b.json", squad(qa(question="")))
    assert blank[0].question == ""
    for answers, spans in (
        ({"text": ["first"], "answer_start": [14]}, (("first", 14),)),
        ({"text": [], "answer_start": []}, ()),
        ("program", (("program", 20),)),
        (["in", {"text": "Ada"}], (("in", 28), ("Ada", 0))),
        ([{"text": "r", "answer_start": 22}], (("r", 21),)),  # moved to the nearest
        (None, ()),
    ):
        record = {"question": "q?", "context": CONTEXT, "answers": answers}
        assert read(tmp_path, "c.jsonl", record)[0].answers == spans
    (one,) = read(
        tmp_path, "d.json", {"data": [{"id": 7, "query": "q", "passage": "x y", "answer": "y"}]}
    )
    assert (one.id, one.answers) == ("7", (("y", 2),))
    (one,) = read(tmp_path, "e.csv", "question,context,answer,start\nq,a a,a,2\n")
    assert one.answers == (("a", 2),)
    (one,) = read(tmp_path, "f.csv", "question,context,answers,is_impossible\nq,a,,true\n")
    assert one.answers == ()


def test_hostile_files_are_one_clear_error(tmp_path):
    record = {"question": "q", "context": CONTEXT}
    for name, value, message in (
        (
            "a.json",
            squad(qa(answers=[{"text": "Bob", "answer_start": 0}])),
            '"Bob" of .*question q1 is not in its context',
        ),
        ("b.json", {"data": 3}, r"b.json is not in the format of SQuAD"),
        ("c.json", {"data": [3]}, "article 1 is not in the format of SQuAD"),
        (
            "d.json",
            {"data": [{"paragraphs": [{"qas": [{}]}]}]},
            "article 1 is not .*there is no 'context'",
        ),
        ("e.json", squad({"question": "x"}), "article 1 is not in the format of SQuAD: .*'id'"),
        ("f.json", squad(qa(question=3)), '"question" of .*question q1 is a number, not a string'),
        ("g.jsonl", {**record, "answers": 3}, "an answer of .*line 1 is a number"),
        ("h.jsonl", {**record, "answers": " "}, "an answer of .* is blank"),
        ("i.jsonl", {**record, "answers": {"text": ["a"], "start": [1, 2]}}, "1 texts, 2 starts"),
        ("j.jsonl", {**record, "answers": "Ada", "start": "x"}, "the start of an answer .* is 'x'"),
        ("k.jsonl", record, "no column for the answers .*--set objective.answers_field=NAME"),
        ("l.json", "{broken", "not valid JSON"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path, name, value)
    with pytest.raises(RecipeError, match="trains encoder-only models"):
        QuestionAnswering().heads(presets["gpt2-tiny"])


def test_elmo_answers_from_a_mix_of_its_layers_after_any_other_task():
    elmo = presets["elmo-tiny"]
    tagger = elmo.with_heads((TaggerHead(num_labels=3),))
    for base in (elmo, tagger):
        answers = base.with_heads(QuestionAnswering().heads(base))
        assert answers.heads == (SpanHead(), ScalarMix(num_layers=3))
        assert answers.family == "encoder-only"


def test_spans_are_the_answers_tokens_in_every_window():
    long = "the first program in London"  # of which windows have the end or the beginning alone
    gold = [
        *questions(),
        Question("no", "why", CONTEXT, (), "x"),
        Question("long", "who wrote", CONTEXT, ((long, CONTEXT.index(long)),), "x"),
    ]
    objective, lm = untrained(QuestionAnswering(stride=2), gold, "bert")
    object.__setattr__(lm.settings, "tokenizer", {"model_max_length": 11})
    encoded = objective.encode(gold, lm)
    rows = encoded.take(range(len(encoded)))
    assert len(encoded) > len(gold)  # several windows of a context
    answers = set()
    for ids, (first, last) in zip(rows.input_ids, rows.sequence_labels):
        if first:
            answers.add(lm.tokenizer.decode(ids[first : last + 1].tolist()))
    assert answers == {"Ada", "London", "Grace", "the old town"}


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe"])
def test_punctuation_beside_an_answer_is_no_part_of_it(kind):
    context = 'then (Bob), "Ada" and Grace; left.'
    answers = ("Bob", "Ada", "Grace", 'Ada" and Grace', "left")
    gold = [Question(a, "who", context, ((a, context.index(a)),), "x") for a in answers]
    objective, lm = untrained(QuestionAnswering(), gold, "bert")
    options = {"special_tokens": SPECIALS["bert"], "progress": False}
    lm.tokenizer = Tokenizer.train(kind, texts=[context, "who"] * 9, vocab_size=320, **options)
    encoded = objective.encode(gold, lm)
    rows = encoded.take(range(len(gold)))
    for answer, ids, (first, last) in zip(answers, rows.input_ids, rows.sequence_labels):
        shown = lm.tokenizer.decode(ids[first : last + 1].tolist()).strip()
        assert shown.replace(" ", "").lower() == answer.replace(" ", "").lower()


def test_overfits_and_measures_itself():
    for impossible in (False, True):
        gold = questions(impossible=impossible)
        objective, lm, _ = overfit(QuestionAnswering(), gold, "bert", lr=2e-3)
        metrics = objective.evaluate(lm, gold)
        assert (metrics.main, metrics.score) == ("f1", 1.0)
        assert metrics.values.get("no_answer_exact_match") == (1.0 if impossible else None)
        assert not metrics.mistakes
    wrong = Question("w", gold[0].question, CONTEXT, (("program", 20),), "y, line 1")
    (mistake,) = objective.evaluate(lm, [wrong]).mistakes
    assert (mistake.expected, mistake.predicted) == ("program", "Ada")
    assert "answer runs/x 'Who wrote it?' --context" in objective.suggest_command("runs/x", lm)


@torch.no_grad()
def test_loss_is_half_of_both_ends_without_padding():
    gold = questions()
    objective, lm = untrained(QuestionAnswering(), gold, "bert")
    encoded = objective.encode(gold, lm)
    batch = encoded.take(range(4)).to_batch()
    assert batch.attention_mask is not None
    total = float(objective.loss(lm.module, to_device(batch, torch.device("cpu")))["loss"])
    alone = 0.0
    for i in range(4):
        one = encoded.take([i]).to_batch()
        inputs = to_device(one, torch.device("cpu"))
        logits = lm.module.logits(lm.module(**inputs.inputs), head="span")[0]
        for end in (0, 1):
            alone += float(F.cross_entropy(logits[:, end], inputs.sequence_labels[0, end])) / 2
    assert total == pytest.approx(alone, rel=1e-9)


def test_scores_are_those_of_the_official_script():
    for predicted, references, expected in (
        ("The tower.", ["tower", "the Eiffel Tower"], (1.0, 1.0)),
        ("Eiffel", ["the Eiffel Tower"], (0.0, 2 / 3)),
        ("", [], (1.0, 1.0)),
        ("x", [], (0.0, 0.0)),
        ("", ["x"], (0.0, 0.0)),
        ("a", ["the"], (1.0, 1.0)),  # nothing is left of both
        ("a a b", ["a b b"], (0.0, 2 * 1 / 3)),  # articles are dropped first: b of b, b
        ("\u5317\u4eac\u5e02", ["\u5317\u4eac"], (0.0, 4 / 5)),
        ("\u5317\u4eac\u3002", ["\u300a\u5317\u4eac\u300b"], (1.0, 1.0)),
    ):
        assert compute_squad_scores(predicted, references) == pytest.approx(expected), (
            predicted,
            references,
        )
