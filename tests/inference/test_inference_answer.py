"""Answers as spans, against every pair of ends; windows, against those of `transformers`."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from task_models import as_ours, theirs
from their_tokenizers import KINDS, SAMPLES, TEXT, ours
from their_tokenizers import theirs as their_tokenizer

from trivium.inference.answer import AnswerSpan, find_answers, windows

transformers = pytest.importorskip("transformers")

CONTEXTS = [
    *TEXT,
    "   leading spaces,\n\n and lines\nÉté à Zürich, déjà vu 3,5 °C  ",
    "今天天气很好。我们去公园。「你好」" * 3,
    "Ada",
    " ".join(TEXT),
]
QUESTIONS = [
    "Who wrote it?",
    "今天?",
    "Where was the weather cloudy and who wrote the notes on it?",
]
ASKED = list(itertools.product(QUESTIONS, CONTEXTS))


@pytest.fixture(scope="module")
def hf():
    return theirs("BertForQuestionAnswering")


@pytest.fixture(scope="module")
def model(hf):
    return as_ours(hf, "bert")


def every_pair(model, tokenizer, asked, limit, stride):
    """Score of every span of every window by the definition, in characters; and of no answer."""
    context = asked[1]
    found, nothing = {}, math.inf
    for part in windows(tokenizer, [asked], max_length=limit, stride=stride):
        ids, types = torch.tensor([part.input.ids]), torch.tensor([part.input.type_ids])
        with torch.no_grad():
            kinds = {"token_type_ids": types} if model.spec.embedding.num_token_types else {}
            scores = model.logits(model(ids, **kinds), head="span")[0]
        nothing = min(nothing, float(scores[0].sum()))
        places = [place for place, text in enumerate(part.input.texts) if text == 1]
        for a, b in itertools.combinations_with_replacement(places, 2):
            start, end = part.input.offsets[a][0], part.input.offsets[b][1]
            text = context[start:end]
            start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
            if b - a < 30 and start < end:
                score = float(scores[a, 0] + scores[b, 1])
                found[start, end] = max(score, found.get((start, end), -math.inf))
    return found, nothing


@pytest.mark.parametrize("limit", [None, 29, 41])
@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_the_best_of_all_spans(hf, family, limit):
    module, tokenizer = as_ours(hf, family).module, ours(family)
    asked = [(q, c) for q, c in ASKED if limit or len(q + c) < 45][::2]
    found = find_answers(module, tokenizer, asked, max_length=limit, stride=7, top_k=5)
    for each, (answers, margin) in zip(asked, found, strict=True):
        spans, nothing = every_pair(module, tokenizer, each, limit, 7)
        ranked = sorted(spans.items(), key=lambda item: -item[1])
        wanted = [span for span, _ in ranked[:5]]
        assert [(answer.start, answer.end) for answer in answers] == wanted
        assert margin == pytest.approx(nothing - ranked[0][1], abs=1e-3)
        for answer in answers:
            assert answer.text == each[1][answer.start : answer.end]
            assert answer.text == answer.text.strip() != ""
        shares = torch.tensor([*(score for _, score in ranked[:20]), nothing]).softmax(0)
        assert [answer.score for answer in answers] == pytest.approx(
            shares[: len(answers)].tolist(), abs=1e-4
        )


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize(("limit", "stride"), [(19, 3), (31, 128), (23, 1), (None, 5)])
def test_windows_are_those_of_transformers_and_cover_the_context(family, limit, stride):
    tokenizer = ours(family)
    rng = random.Random(0)
    contexts = [*CONTEXTS, "".join(rng.choices("abcé好 \n", k=97))]
    asked = [("it's", context) for context in contexts if context]
    parts = windows(tokenizer, asked, max_length=limit, stride=stride)
    for number, (question, context) in enumerate(asked):
        mine = [part.input for part in parts if part.question == number]
        covered = set()
        for each in mine:
            assert limit is None or len(each.ids) <= limit
            inside = [o for o, text in zip(each.offsets, each.texts) if text == 1]
            assert parts[0].input.texts[parts[0].context_start] == 1
            covered.update(n for start, end in inside for n in range(start, end))
        assert {n for n, c in enumerate(context) if not c.isspace()} <= covered
        if limit is None:
            assert len(mine) == 1
        elif family in ("bert", "roberta", "t5") and stride < limit // 4:
            found = their_tokenizer(family)(
                question,
                context,
                max_length=limit,
                stride=stride,
                truncation="only_second",
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_token_type_ids=True,
            )
            assert [each.ids for each in mine] == found["input_ids"]
            if (
                family != "t5"
            ):  # whose template tells no types: theirs are of the first window alone
                assert [each.type_ids for each in mine] == found["token_type_ids"]
            theirs_at = [[tuple(o) for o in offsets] for offsets in found["offset_mapping"]]
            assert [each.offsets for each in mine] == theirs_at


def test_a_short_context_is_one_window():
    parts = windows(ours("bert"), [("Who?", "Ada wrote it.")], max_length=61)
    assert [part.question for part in parts] == [0]
    assert parts[0].input.cut == 0


def test_a_long_question_is_cut_to_a_quarter():
    tokenizer = ours("bert")
    question = " ".join(SAMPLES[:2])
    parts = windows(tokenizer, [(question, TEXT[1])], max_length=24)
    whole = tokenizer.encode(question, add_special_tokens=False).ids
    assert len(parts) > 1
    for part in parts:
        asked = [i for i, text in zip(part.input.ids, part.input.texts) if text == 0]
        assert asked == list(whole[:6])
        assert part.input.cut >= len(whole) - 6


def test_windows_too_small_for_anything_go_on():
    parts = windows(ours("bert"), [("Who wrote it?", TEXT[1])], max_length=5)
    size = len(ours("bert").encode(TEXT[1], add_special_tokens=False).ids)
    assert len(parts) == size


def test_an_empty_context_has_no_answer(model):
    for context in ("", "  \n"):
        ((answers, margin),) = find_answers(
            model.module, model.text_tokenizer, [("Who?", context)], max_length=61
        )
        assert answers == [AnswerSpan("", 0, 0, 1.0)]
        assert margin == math.inf
        assert model.answer("Who?", context, top_k=3) == answers


def test_together_and_one_by_one(model):
    together = model.answers_with_margins(ASKED, top_k=3)
    for asked, (answers, margin) in zip(ASKED, together, strict=True):
        ((alone, other),) = model.answers_with_margins([asked], top_k=3)
        assert [(each.start, each.end) for each in answers] == [(e.start, e.end) for e in alone]
        assert [e.score for e in answers] == pytest.approx([e.score for e in alone], abs=1e-4)
        assert margin == pytest.approx(other, abs=1e-3)


def test_no_answer_beyond_the_threshold(hf, model):
    margins = [margin for _, margin in model.answers_with_margins(ASKED)]
    between = sorted(margins)[len(margins) // 2]
    options = {"qa": {"stride": 128, "no_answer_threshold": between}}
    strict = as_ours(hf, "bert", finetuning_task="qa", task_specific_params=options)
    plain, limited = model.answer_all(ASKED, top_k=2), strict.answer_all(ASKED, top_k=2)
    refused = 0
    for margin, free, answers in zip(margins, plain, limited, strict=True):
        if margin > between:
            refused += 1
            assert answers[0].text == ""
            assert answers[1] == free[0]
            assert len(answers) == 2
            odds = answers[0].score / free[0].score
            assert math.log(odds) == pytest.approx(margin, abs=1e-3)
        else:
            assert answers == free
    assert 0 < refused < len(ASKED)


def test_more_answers_than_candidates(model):
    answers = model.answer(*ASKED[0], top_k=53)
    assert len(answers) == 53
    scores = [answer.score for answer in answers]
    assert scores == sorted(scores, reverse=True)


def test_an_encoder_decoder_answers_too():
    hf = theirs("BartForQuestionAnswering")
    model = as_ours(hf, "roberta", decoder_start_token_id=2)
    question, context = QUESTIONS[0], CONTEXTS[1][:40]
    inputs = their_tokenizer("roberta")(question, context, return_tensors="pt")
    texts = inputs.sequence_ids(0)
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        said = hf(**inputs)
    places = [place for place, text in enumerate(texts) if text == 1]
    best = max(
        itertools.combinations_with_replacement(places, 2),
        key=lambda pair: (
            float(said.start_logits[0, pair[0]] + said.end_logits[0, pair[1]])
            if pair[1] - pair[0] < 30
            else -math.inf
        ),
    )
    offsets = ours("roberta").encode(context).offsets[1:-1]
    (answer,) = model.answer(question, context)
    first = places[0]
    start, end = offsets[best[0] - first][0], offsets[best[1] - first][1]
    assert answer.text == context[start:end].strip()
