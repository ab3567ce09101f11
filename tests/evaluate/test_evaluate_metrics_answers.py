"""Answers to questions: the definitions of SQuAD 1.1, SQuAD 2.0 and CMRC, written a second time."""

from __future__ import annotations

import json
import string

import numpy as np
import pytest

from trivium.errors import DataError
from trivium.evaluate.answer_metrics import (
    AnswerStyle,
    answer_metrics,
    answer_score,
    normalize_answer,
)

WORDS = ["The", "a", "an", "the", "Tower", "tower,", "of", "U.S.", "an!", "Theory", "3.5%", "--"]
WORDS += ["\u00c9t\u00e9", "co-op", "it's", "\tA\n", "'", "the-"]
HAN = ["\u5317\u4eac", "\u3002", "\uff0cA", " gpt-4 ", "\u5927\u5b66", "2008", "\u5e74", "\u300a"]
# Of each something is left.
PLAIN = ["Tower", "tower,", "of", "U.S.", "Theory", "3.5%", "co-op"]


def words_of(text: str) -> list[str]:
    """Lower case; no punctuation; then no articles; what white space parts."""
    bare = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return [word for word in bare.split() if word not in ("a", "an", "the")]


def exact_by_definition(answer: str, predicted: str) -> int:
    return int(words_of(answer) == words_of(predicted))


def f1_by_definition(answer: str, predicted: str, *, empty_counts: bool) -> float:
    right, found = words_of(answer), words_of(predicted)
    if empty_counts and (not right or not found):
        return float(right == found)
    left, common = list(right), 0
    for word in found:
        if word in left:
            left.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(right)
    return 2 * precision * recall / (precision + recall)


def questions(seed: int, *, unanswerable: float, words: list[str] = WORDS):
    """(predicted, answers): right answers, random ones and nothing."""
    chance = np.random.default_rng(seed)

    def text() -> str:
        places = chance.integers(0, len(words), chance.integers(4))
        return " ".join(words[place] for place in places)

    answers, predicted = [], []
    for _ in range(41):
        several = [text() for _ in range(chance.integers(1, 4))]
        answers.append([] if chance.random() < unanswerable else several)
        choice = chance.random()
        predicted.append(several[0].upper() if choice < 0.4 else "" if choice < 0.6 else text())
    return predicted, answers


def squad2(predicted: list[str], answers: list[list[str]]) -> tuple[list[float], list[float]]:
    """Exact matches and F1 of all questions."""
    exact, f1 = [], []
    for text, right in zip(predicted, answers):
        golds = [answer for answer in right if words_of(answer)] or [""]
        exact.append(max(exact_by_definition(gold, text) for gold in golds))
        f1.append(max(f1_by_definition(gold, text, empty_counts=True) for gold in golds))
    return exact, f1


@pytest.mark.parametrize("seed", range(6))
def test_squad_1_agrees_with_its_definition(seed: int):
    predicted, answers = questions(seed, unanswerable=0.0)
    found = answer_metrics(predicted, answers, style="squad-1.1")
    pairs = list(zip(predicted, answers))
    exact = [max(exact_by_definition(gold, text) for gold in right) for text, right in pairs]
    f1 = [
        max(f1_by_definition(gold, text, empty_counts=False) for gold in right)
        for text, right in pairs
    ]
    assert found.overall.exact == pytest.approx(100 * np.mean(exact))
    assert found.overall.f1 == pytest.approx(100 * np.mean(f1))
    assert found.main == ("f1", found.overall.f1)
    assert found.no_answer is None
    assert 0 < found.overall.exact < 100


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_squad_2_agrees_with_its_definition(seed: int, threshold: float | None):
    predicted, answers = questions(seed, unanswerable=0.4)
    chances = np.random.default_rng(seed).random(len(answers))
    found = answer_metrics(
        predicted, answers, no_answer=chances.tolist() if threshold else None, threshold=threshold
    )
    has = np.array([bool(right) for right in answers])
    exact, f1 = (np.array(values) for values in squad2(predicted, answers))
    if threshold is not None:
        exact, f1 = (np.where(chances > threshold, ~has, values) for values in (exact, f1))
    expected = {}
    for prefix, chosen in (("", has | ~has), ("HasAns_", has), ("NoAns_", ~has)):
        expected[f"{prefix}exact"] = 100 * exact[chosen].mean()
        expected[f"{prefix}f1"] = 100 * f1[chosen].mean()
        expected[f"{prefix}total"] = chosen.sum()
    numbers = found.to_dict()
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)
    assert len(found.table()) == 4
    json.dumps(numbers, allow_nan=False)


@pytest.mark.parametrize("seed", range(8))
def test_the_best_threshold_is_the_best_of_all(seed: int):
    predicted, answers = questions(seed, unanswerable=0.5, words=PLAIN)
    chances = np.random.default_rng(seed).permutation(len(answers)) / len(answers) + 0.001
    best = answer_metrics(predicted, answers, no_answer=chances.tolist()).best
    assert best is not None
    for name in ("exact", "f1"):
        reached = {
            at: getattr(
                answer_metrics(
                    predicted, answers, no_answer=chances.tolist(), threshold=at
                ).overall,
                name,
            )
            for at in (0.0, *chances.tolist())
        }
        value, at = getattr(best, name), getattr(best, f"{name}_threshold")
        assert value == pytest.approx(max(reached.values()))
        assert reached[at] == pytest.approx(value)


def test_the_threshold_is_searched_as_the_official_script_does():
    # 0 answered: 2 of 4. Then +1 (right), 0 (left empty), -1 (wrongly answered), +0.5.
    predicted, answers = ["x", "x", "", "x"], [["x"], [], [], ["x y z"]]
    found = answer_metrics(predicted, answers, no_answer=[-3.0, -2.0, -2.5, 2.0])
    assert found.best is not None
    assert (found.best.exact, found.best.exact_threshold) == (75.0, -3.0)
    assert (found.best.f1, found.best.f1_threshold) == (75.0, -3.0)
    assert found.main == ("best_f1", 75.0)
    # Of "the" nothing is left, but it was answered: right as an answer, wrong in the search.
    left = answer_metrics(["the"], [[]], no_answer=[0.2])
    assert left.best is not None
    assert (left.overall.f1, left.best.f1, left.best.f1_threshold) == (100.0, 100.0, 0.0)
    # Where nothing is gained, every question is left unanswered at 0.
    nothing = answer_metrics(["x"], [[]], no_answer=[0.2]).best
    assert nothing is not None
    assert (nothing.f1, nothing.f1_threshold) == (100.0, 0.0)


@pytest.mark.parametrize(
    ("predicted", "answers", "style", "expected"),
    [
        ("the", ["a"], "squad-1.1", (1.0, 0.0)),  # Nothing is left of either.
        ("the", ["a"], "squad-2.0", (1.0, 1.0)),
        ("", [], "squad-2.0", (1.0, 1.0)),
        ("x", [], "squad-2.0", (0.0, 0.0)),
        ("", ["x"], "squad-2.0", (0.0, 0.0)),
        ("", ["the", "x"], "squad-2.0", (0.0, 0.0)),  # "the" is no answer.
        ("", ["the", "x"], "squad-1.1", (1.0, 0.0)),
        ("x y", ["x z", "y x"], "squad-2.0", (0.0, 1.0)),
        ("", [], "cmrc", (1.0, 1.0)),
        ("\u5317", [], "cmrc", (0.0, 0.0)),
        ("", ["\u5317"], "cmrc", (0.0, 0.0)),
        ("\u5317\u4eac\u5927\u5b66\u3002", ["\u300a\u5317\u4eac\u5927\u5b66"], "cmrc", (1.0, 1.0)),
        ("\u5927\u5b66", ["\u5317\u4eac\u5927\u5b66"], "cmrc", (0.0, 2 / 3)),
        ("\u5317\u5b66", ["\u5317\u4eac\u5927\u5b66"], "cmrc", (0.0, 1 / 3)),  # The run counts.
        ("\u6771\u4eac\u30bf\u30ef\u30fc", ["\u30bf\u30ef\u30fc"], "cmrc", (0.0, 0.75)),
        ("\u6709 6,476.5 \u540d", ["6,476.5\u540d, A.B"], "cmrc", (0.0, 4 / 9)),
        ("GPT-4 \u6a21\u578b", ["gpt4 \u6a21"], "cmrc", (0.0, 0.8)),
    ],
)
def test_single_answers(
    predicted: str, answers: list[str], style: AnswerStyle, expected: tuple[float, float]
):
    assert answer_score(predicted, answers, style) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_cmrc_agrees_with_its_definition(seed: int):
    marks = "-:_*^/\\~`+=\uff0c\u3002\uff1a\uff1f\uff01\u300a\u300b"

    def bare(text: str) -> str:
        return "".join(sign for sign in text.lower().strip() if sign not in marks)

    def parts(text: str) -> list[str]:
        signs = (f" {sign} " if "\u4e00" <= sign <= "\u9fa5" else sign for sign in bare(text))
        return "".join(signs).split()

    def longest(right: list[str], found: list[str]) -> int:
        runs = [[0] * (len(found) + 1) for _ in range(len(right) + 1)]
        for i, one in enumerate(right, start=1):
            for j, other in enumerate(found, start=1):
                runs[i][j] = runs[i - 1][j - 1] + 1 if one == other else 0
        return max(map(max, runs))

    predicted, answers = questions(seed, unanswerable=0.0, words=HAN)
    exact, f1 = [], []
    for text, right in zip(predicted, answers):
        exact.append(max(bare(gold) == bare(text) for gold in right))
        scores = [0.0]
        for gold in right:
            common = longest(parts(gold), parts(text))
            if common:
                precision, recall = common / len(parts(text)), common / len(parts(gold))
                scores.append(2 * precision * recall / (precision + recall))
        f1.append(max(scores))
    found = answer_metrics(predicted, answers, style="cmrc").overall
    assert found.exact == pytest.approx(100 * np.mean(exact))
    assert found.f1 == pytest.approx(100 * np.mean(f1))
    assert 0 < found.f1 < 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The a an", ""), ("Anthem theory, a.", "anthem theory"), ("the\u00a0end", "end"), ("", "")],
)
def test_what_is_left_of_an_answer(text: str, expected: str):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"predicted": [], "answers": []}, "no questions"),
        ({"predicted": ["x"], "answers": [["x"], ["y"]]}, "1 predictions for 2 questions"),
        (
            {"predicted": ["x", ""], "answers": [["x"], []], "style": "squad-1.1"},
            'question 2 has no right answer.*"squad-2.0"',
        ),
        ({"predicted": ["x"], "answers": [["x"]], "threshold": 0.5}, "needs the score"),
        ({"predicted": ["x"], "answers": [["x"]], "no_answer": []}, "0 scores"),
        (
            {"predicted": ["x"], "answers": [["x"]], "no_answer": [float("nan")]},
            "question 1 is nan",
        ),
    ],
)
def test_answers_that_cannot_be_compared(arguments: dict, message: str):
    with pytest.raises(DataError, match=message):
        answer_metrics(**arguments)
