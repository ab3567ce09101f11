"""How well questions are answered from a text: exact match and F1 as SQuAD and CMRC define them.

All numbers are per cent, as the official scripts give them.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from trivium.errors import DataError
from trivium.evaluate.metrics import TableRow, check_equal_lengths

AnswerStyle = Literal["squad-1.1", "squad-2.0", "cmrc"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The marks that CMRC's script leaves out: other ASCII punctuation stays.
_CMRC_MARKS = str.maketrans(
    "",
    "",
    "-:_*^/\\~`+="
    "\uff0c\u3002\uff1a\uff1f\uff01\u201c\u201d\uff1b\u2019\u300a\u300b\u00b7\u3001"
    "\u300c\u300d\uff08\uff09\uff0d\uff5e\u300e\u300f",
)
_HAN_OR_KANA = (
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003134f"
)
# A character, a word or number such as 6,476, or a mark.
_CMRC_PART = re.compile(rf"[{_HAN_OR_KANA}]|(?:(?![{_HAN_OR_KANA}])\w)+(?:[.,][0-9]+)*|[^\w\s]")


@dataclass(frozen=True)
class AnswerScore:
    """Exact match and F1 of some questions, in per cent, and how many these are."""

    exact: float
    f1: float
    total: int


@dataclass(frozen=True)
class BestThresholds:
    """Where to put the threshold for "no answer", and what is reached there, in per cent.

    As the official SQuAD 2.0 script searches it: among the given scores in their order, from 0.0
    where every question is left unanswered.
    """

    exact: float
    exact_threshold: float
    f1: float
    f1_threshold: float


@dataclass(frozen=True)
class AnswerMetrics:
    """Exact match and F1 of all questions, and of those with and those without an answer.

    The parts are None where there are no such questions, `best` where no scores for "no answer"
    were given.
    """

    overall: AnswerScore
    has_answer: AnswerScore | None
    no_answer: AnswerScore | None
    best: BestThresholds | None

    @property
    def main(self) -> tuple[str, float]:
        """F1, at the best threshold if one was searched."""
        if self.best is not None:
            return "best_f1", self.best.f1
        return "f1", self.overall.f1

    def to_dict(self) -> dict[str, float]:
        """Every number by the name that the official script gives it."""
        found: dict[str, float] = {}
        parts = (("", self.overall), ("HasAns_", self.has_answer), ("NoAns_", self.no_answer))
        for prefix, part in parts:
            if part is not None:
                found[f"{prefix}exact"] = part.exact
                found[f"{prefix}f1"] = part.f1
                found[f"{prefix}total"] = part.total
        if self.best is not None:
            found["best_exact"] = self.best.exact
            found["best_exact_thresh"] = self.best.exact_threshold
            found["best_f1"] = self.best.f1
            found["best_f1_thresh"] = self.best.f1_threshold
        return found

    def table(self) -> list[TableRow]:
        """All questions, those with and those without an answer, below a row of names."""
        parts = (
            ("all", self.overall),
            ("with an answer", self.has_answer),
            ("without an answer", self.no_answer),
        )
        rows = [
            (name, f"{part.exact:.2f}", f"{part.f1:.2f}", str(part.total))
            for name, part in parts
            if part is not None
        ]
        return [("Questions", "Exact match", "F1", "Total"), *rows]


def answer_metrics(
    predicted: Sequence[str],
    answers: Sequence[Sequence[str]],
    *,
    style: AnswerStyle = "squad-2.0",
    no_answer: Sequence[float] | None = None,
    threshold: float | None = None,
) -> AnswerMetrics:
    """Compare the answer to each question with the right ones, of which the nearest counts.

    Args:
        predicted: what was answered; "" where the question is said to have no answer.
        answers: all right answers of each question, none where it has no answer.
        style: "squad-2.0", or "squad-1.1" where every question has an answer; "cmrc" for Chinese
            and Japanese, see `answer_score`.
        no_answer: for each question, a score (a probability, or how far "no answer" lies above
            the best answer) that grows as an answer grows unlikely.
        threshold: a question with a larger score than this counts as left unanswered.

    Raises:
        DataError: no questions, unequal numbers, a question without an answer in SQuAD 1.1, a
            threshold without scores, or a score that is not finite.
    """
    check_equal_lengths(answers, predicted, "questions")
    has_answer = [bool(right) for right in answers]
    if style == "squad-1.1" and not all(has_answer):
        raise DataError(
            f"question {has_answer.index(False) + 1} has no right answer, as SQuAD 1.1 does not "
            'know it: choose "squad-2.0".'
        )
    scores = [answer_score(text, right, style) for text, right in zip(predicted, answers)]
    best = None
    if no_answer is not None:
        _check_no_answer(no_answer, len(answers))
        best = _best_thresholds(predicted, scores, no_answer, has_answer)
    if threshold is not None:
        if no_answer is None:
            raise DataError("a threshold needs the score of every question for having no answer.")
        scores = [
            (float(not has), float(not has)) if score > threshold else pair
            for pair, score, has in zip(scores, no_answer, has_answer)
        ]
    return AnswerMetrics(
        overall=_mean(scores),
        has_answer=_part(scores, has_answer, True),
        no_answer=_part(scores, has_answer, False),
        best=best,
    )


def answer_score(
    predicted: str, answers: Sequence[str], style: AnswerStyle = "squad-2.0"
) -> tuple[float, float]:
    """Exact match (0 or 1) and F1 (share of 1) of one answer, each with the nearest right one.

    SQuAD (Rajpurkar et al. 2016, 2018) compares bags of words without case, punctuation and
    English articles. CMRC (Cui et al. 2019) compares the longest common run of Chinese characters
    and other words, without case and Chinese punctuation. Differences from CMRC's script: kana
    and rare characters are parts of their own too, other words are split at punctuation by a rule
    instead of NLTK's, and a question may have no answer.

    >>> answer_score("The tower.", ["tower", "the Eiffel Tower"])
    (1.0, 1.0)
    """
    if style == "squad-2.0":
        # An answer of which nothing is left is none.
        answers = [answer for answer in answers if normalize_answer(answer)] or [""]
    elif style == "cmrc" and not answers:
        return (float(not predicted), float(not predicted))
    normalize = _without_marks if style == "cmrc" else normalize_answer
    exact = any(normalize(predicted) == normalize(answer) for answer in answers)
    return float(exact), max(_f1(predicted, answer, style) for answer in answers)


def normalize_answer(text: str) -> str:
    """Without case, ASCII punctuation, English articles and spare white space, as SQuAD has it.

    >>> normalize_answer(" The  U.S.-based 'Cat'!")
    'usbased cat'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _f1(predicted: str, answer: str, style: AnswerStyle) -> float:
    """2 PR / (P + R) of the parts that both have in common."""
    if style == "cmrc":
        found, right = (_CMRC_PART.findall(_without_marks(text)) for text in (predicted, answer))
        matcher = SequenceMatcher(None, found, right, autojunk=False)
        common = matcher.find_longest_match().size
    else:
        found, right = normalize_answer(predicted).split(), normalize_answer(answer).split()
        common = (Counter(found) & Counter(right)).total()
    if style == "squad-2.0" and not (found and right):
        return float(found == right)
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(right)
    return 2 * precision * recall / (precision + recall)


def _without_marks(text: str) -> str:
    return text.lower().strip().translate(_CMRC_MARKS)


def _check_no_answer(scores: Sequence[float], questions: int) -> None:
    if len(scores) != questions:
        raise DataError(f'{len(scores)} scores for "no answer", but {questions} questions.')
    odd = next((number for number, score in enumerate(scores) if not math.isfinite(score)), None)
    if odd is not None:
        raise DataError(f'the score for "no answer" of question {odd + 1} is {scores[odd]}.')


def _best_thresholds(
    predicted: Sequence[str],
    scores: Sequence[tuple[float, float]],
    no_answer: Sequence[float],
    has_answer: Sequence[bool],
) -> BestThresholds:
    exact = _best_threshold(predicted, [one for one, _ in scores], no_answer, has_answer)
    f1 = _best_threshold(predicted, [one for _, one in scores], no_answer, has_answer)
    return BestThresholds(*exact, *f1)


def _best_threshold(
    predicted: Sequence[str],
    scores: Sequence[float],
    no_answer: Sequence[float],
    has_answer: Sequence[bool],
) -> tuple[float, float]:
    """(per cent, threshold): questions are answered one after the other, the surest first."""
    reached = best = float(has_answer.count(False))
    threshold = 0.0
    for place in sorted(range(len(scores)), key=lambda place: no_answer[place]):
        if has_answer[place]:
            reached += scores[place]
        elif predicted[place]:
            reached -= 1
        if reached > best:
            best, threshold = reached, no_answer[place]
    return 100.0 * best / len(scores), threshold


def _part(
    scores: Sequence[tuple[float, float]], has_answer: Sequence[bool], wanted: bool
) -> AnswerScore | None:
    chosen = [pair for pair, has in zip(scores, has_answer) if has is wanted]
    return _mean(chosen) if chosen else None


def _mean(scores: Sequence[tuple[float, float]]) -> AnswerScore:
    total = len(scores)
    exact, f1 = (100.0 * sum(values) / total for values in zip(*scores))
    return AnswerScore(exact, f1, total)
