"""Few-shot prompting (Brown et al. 2020): solved examples before a question, nothing trained."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from trivium.data.records import Record
from trivium.data.row_order import permutation
from trivium.errors import DataError, SpecError, TriviumError, did_you_mean
from trivium.evaluate.truncation import truncate_left
from trivium.inference.score import SequenceScore, encode_item, score_continuations
from trivium.language_model import LanguageModel
from trivium.objectives.task_metrics import Metrics, Mistake

ANSWERS = ("answer", "label", "target", "output")
OPTIONS = ("choices", "options", "endings")
Normalise = Literal["sum", "token", "byte"]


@dataclass(frozen=True)
class FewShot:
    """How questions are put.

    Args:
        shots: solved examples before each question.
        seed: with the number of a question, decides which examples these are.
        template: the text of an example, with {column} for a column and {answer} for its answer;
            default: a line "Column: value" for each, the answer last.
        options: the words for labels 0, 1, ...; or the only answers there are.
        normalise: options are compared by log-probability, in all, per token or per byte.
        max_new_tokens: of a generated answer, where there are no options.
    """

    shots: int = 0
    seed: int = 0
    template: str | None = None
    options: Sequence[str] = ()
    normalise: Normalise = "sum"
    max_new_tokens: int = 32

    def __post_init__(self) -> None:
        if self.shots < 0:
            raise TriviumError(f"shots is {self.shots}, but must be 0 or more.")
        if self.normalise not in get_args(Normalise):
            raise TriviumError(f"normalise is {self.normalise!r}: choose sum, token or byte.")
        if self.template is not None and self.template.count("{answer}") != 1:
            raise TriviumError(f"the template {self.template!r} must have {{answer}} in it once.")


@dataclass(frozen=True, slots=True)
class PromptQuestion:
    """A question: the text before its answer and after it, the answer, and all options."""

    before: str
    after: str
    answer: str
    options: tuple[str, ...]
    where: str


def read_questions(records: Sequence[Record], how: FewShot) -> list[PromptQuestion]:
    """Questions of records with a column `answer` or `label` (or `target`, `output`).

    An answer that is a number, and those of a list of `choices`, count options from 0.

    Raises:
        DataError: a missing column, or an answer that is no option.
    """
    labels = {str(one[one.column("answer", ANSWERS, "")]) for one in records}
    return [_question(record, how, sorted(labels)) for record in records]


def prompt_of(
    questions: Sequence[PromptQuestion],
    index: int,
    how: FewShot,
    pool: Sequence[PromptQuestion] | None = None,
) -> str:
    """The prompt of a question, with `how.shots` solved examples of `pool`, or of the others.

    Raises:
        DataError: there are fewer examples than shots.
    """
    examples = [one for i, one in enumerate(questions) if i != index] if pool is None else pool
    if how.shots > len(examples):
        raise DataError(f"{how.shots} shots, but there are only {len(examples)} examples.")
    order = permutation(how.seed, index, len(examples))[: how.shots] if how.shots else ()
    shots = [examples[int(i)] for i in order]
    solved = [f"{one.before}{one.answer}{one.after}" for one in shots]
    return "\n\n".join([*solved, questions[index].before])


def few_shot(
    lm: LanguageModel,
    questions: Sequence[PromptQuestion],
    how: FewShot,
    pool: Sequence[PromptQuestion] | None = None,
) -> Iterator[tuple[str, bool]]:
    """The answer to each question, and whether it is right; one question at a time.

    The most probable option after the prompt is the answer; without options it is generated, up to
    the end of the line.

    Raises:
        SpecError: answers must be generated, and the model generates none.
    """
    for index, one in enumerate(questions):
        prompt = prompt_of(questions, index, how, pool)
        if one.options:
            answer = _best_option(lm, prompt, one, how.normalise)
        elif "generate" not in lm.capabilities:
            raise SpecError("these questions have no options, and this model generates no text.")
        else:
            # Tokenizers put the space before a word into the word: a prompt must not end with one.
            text = truncate_left(lm, prompt.rstrip(" "), how.max_new_tokens)
            count = how.max_new_tokens
            answer = lm.generate(text, max_new_tokens=count, stop=["\n"], temperature=0.0)
        yield answer, " ".join(answer.split()) == " ".join(one.answer.split())


def few_shot_metrics(
    questions: Sequence[PromptQuestion], answers: Sequence[tuple[str, bool]]
) -> Metrics:
    """Accuracy with its standard error, and that of always giving the most frequent answer."""
    count, right = len(answers), sum(is_right for _, is_right in answers)
    share = right / max(1, count)
    most = max(Counter(one.answer for one in questions[:count]).values(), default=0)
    rows = list(zip(questions, answers))
    return Metrics(
        {
            "accuracy": share,
            "stderr": math.sqrt(share * (1 - share) / max(1, count - 1)),
            "majority": most / max(1, count),
        }
    ).with_examples(
        (
            {"where": one.where, "answer": one.answer, "predicted": text, "right": is_right}
            for one, (text, is_right) in rows
        ),
        [Mistake(q.where, q.before, q.answer, text) for q, (text, ok) in rows if not ok][:20],
    )


def _question(record: Record, how: FewShot, labels: Sequence[str]) -> PromptQuestion:
    column = record.column("answer", ANSWERS, "")
    answer, listed = record.value(column), record.find(OPTIONS)
    options = tuple(map(str, record[listed])) if listed else tuple(how.options)
    if not options and column.lower() == "label":
        options = tuple(labels)
    if options and str(answer) not in options:
        if not str(answer).isdecimal() or int(answer) >= len(options):
            raise DataError(
                f'{record.where}: the answer "{answer}" is none of the options '
                f"{', '.join(options)}.{did_you_mean(str(answer), options)}"
            )
        answer = options[int(answer)]
    template = how.template
    columns = [name for name in record if name not in (column, listed)]
    if template is None:
        lines = [f"{name.capitalize()}: {{{name}}}" for name in columns]
        template = "\n".join([*lines, "Answer: {answer}"])
    before, _, after = template.partition("{answer}")
    return PromptQuestion(
        _fill(before, record), _fill(after, record), str(answer), options, record.where
    )


def _fill(template: str, record: Record) -> str:
    """The template with the values of columns in place of {column}."""
    names = (name for _, name, _, _ in string.Formatter().parse(template) if name is not None)
    return template.format_map({name: record.value(name) for name in names})


def _best_option(lm: LanguageModel, prompt: str, one: PromptQuestion, normalise: Normalise) -> str:
    """The option of the largest log-probability after the prompt, per unit of `normalise`."""
    family = lm.spec.family
    item = encode_item(
        lm.source_tokenizer if family == "encoder-only" else lm.text_tokenizer,
        prompt,
        one.options,
        after=one.after if family == "encoder-only" else "",
        source_tokenizer=lm.source_tokenizer if family == "encoder-decoder" else None,
    )
    (scores,) = score_continuations(lm, [item], truncate=True)

    def value(pair: tuple[str, SequenceScore]) -> float:
        option, score = pair
        units = {"sum": 1, "token": max(1, score.num_tokens), "byte": len(option.encode())}
        return score.total / units[normalise]

    return max(zip(one.options, scores), key=value)[0]
