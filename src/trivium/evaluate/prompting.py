"""Few-shot prompting (Brown et al. 2020): puts solved examples before a question."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trivium.data.records import Record, json_type
from trivium.data.schema import Fields, Schema
from trivium.errors import DataError, TriviumError, did_you_mean
from trivium.inference.score import continuation_scores
from trivium.language_model import LanguageModel
from trivium.objectives.classification import normalize_label
from trivium.objectives.task_metrics import Metrics

_SCHEMA = Schema(
    (
        Fields("answer", ("answer",), ("label", "target", "output")),
        Fields("options?", ("choices",), ("options", "endings")),
    )
)
Normalise = Literal["sum", "token", "byte"]


@dataclass(frozen=True, slots=True)
class PromptQuestion:
    """A question with its answer, for few-shot prompts.

    Args:
        before: the prompt text before the answer.
        after: the prompt text after the answer; often empty.
        answer: the correct answer.
        options: all possible answers; empty if the answer is generated freely.
        where: the file and line of the question, for messages.
    """

    before: str
    after: str
    answer: str
    options: tuple[str, ...]
    where: str


def build_prompts(
    records: Iterable[Record],
    *,
    shots: int = 0,
    seed: int = 0,
    template: str | None = None,
    options: Sequence[str] = (),
    examples: Iterable[Record] | None = None,
    instruction: str = "",
) -> Iterator[tuple[PromptQuestion, str]]:
    """Build a prompt for each question. Yields (question, prompt) pairs.

    A prompt consists of few-shot examples and the question itself.

    Args:
        records: records with a column `answer`, `label`, `target` or `output`. A record may also
            have a list of `choices`. An integer answer is then the index of a choice, counted from
            0, and a string answer is the text of a choice. If no choice has this text, the string
            must be an index or a capital letter (A is 0).
        shots: the number of few-shot examples before each question.
        seed: the random seed for sampling the few-shot examples. A new sample is drawn for each
            question.
        template: the text of an example, where {column} stands for the value of a column and
            {answer} for the answer; default: one line "Column: value" per column, and the answer in
            the last line.
        options: the possible answers. The records may refer to them by index, such as the labels 0
            and 1.
        examples: the records to use as few-shot examples; default: the other questions.
        instruction: the text to put at the start of every prompt.

    Raises:
        DataError: there are no questions, a column is missing, an answer is not an option, or there
            are too few examples.
    """
    questions = _make_questions(records, template, options)
    if not questions:
        raise DataError("The data contains no questions.")
    pool = questions if examples is None else _make_questions(examples, template, options)
    count = len(pool) - 1 if examples is None else len(pool)  # without the question itself
    if not 0 <= shots <= count:
        raise DataError(f"{shots} shots, but there are only {count} examples.")
    for index, question in enumerate(questions):
        sampled = random.Random(f"{seed} {index}").sample(range(count), shots)
        if examples is None:
            sampled = [i + 1 if i >= index else i for i in sampled]
        solved = [f"{pool[i].before}{pool[i].answer}{pool[i].after}" for i in sampled]
        head = [instruction] if instruction else []
        yield question, "\n\n".join([*head, *solved, question.before])


def _make_questions(
    records: Iterable[Record], template: str | None, label_words: Sequence[str]
) -> list[PromptQuestion]:
    """Convert each record to a question with its prompt text, answer and answer options.

    The prompt text follows `template` or, by default, lists the other columns. If an answer is
    given as an index, a label or a letter, it is replaced with the text of the option.
    `label_words` are the possible answers, in the order of the labels 0, 1, ...
    """
    rows, questions = list(records), []
    answers = [_SCHEMA.resolve(record)["answer"] for record in rows]
    for record, column in zip(rows, answers):
        if not label_words and "options" not in record.columns:
            value = record.value_with_class_names(column)
            is_label = column.lower() == "label" or json_type(value) in ("null", "NaN")
            record[column] = normalize_label(value, record.where) if is_label else value
    labels = sorted({str(record[column]) for record, column in zip(rows, answers)})
    for record, column in zip(rows, answers):
        listed, answer = record.columns.get("options"), str(record[column])
        choices = _read_choices(record, listed) if listed else ()
        labels_seen = labels if column.lower() == "label" else ()
        options = tuple(map(str, choices or label_words or labels_seen))
        if options:
            answer = _find_option(record, column, options, is_index=bool(choices))
        columns = [name for name in record if name not in (column, listed)]
        lines = [f"{name.capitalize()}: {{{name}}}" for name in columns]
        text = template or "\n".join([*lines, "Answer: {answer}"])
        if text.count("{answer}") != 1:
            raise DataError(f"the template {template!r} must have {{answer}} in it once.")
        before, after = (_fill_template(part, record) for part in text.split("{answer}"))
        questions.append(PromptQuestion(before, after, answer, options, record.where))
    return questions


def _read_choices(record: Record, column: str) -> list[Any]:
    """Return the list of answer choices in one column of an example.

    In CSV and TSV files, the list is encoded as JSON.

    Raises DataError if the column does not contain a list.
    """
    choices: Any = record[column] or []
    with contextlib.suppress(ValueError):
        choices = json.loads(choices) if record.untyped and choices else choices
    if not isinstance(choices, list):
        raise DataError(f"{record.locate(column)} is {json_type(choices)}: give a list of choices.")
    return choices


def _find_option(record: Record, column: str, options: tuple[str, ...], *, is_index: bool) -> str:
    """Return the option that the answer in a column refers to.

    The answer is the text, index or capital letter of an option. In a CSV or TSV table, a cell that
    looks like an integer is treated as an integer. Raises DataError if there is no such option.

    Args:
        record: the record of the question.
        column: the name of the column with the answer.
        options: all possible answers.
        is_index: whether an integer answer is always an index, even if an option has the same text.
    """
    value, answer = record[column], str(record[column])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_integer = type(value) is int or (record.untyped and answer.isdecimal())
    if answer in options and not (is_index and is_integer):
        return answer
    index = string.ascii_uppercase.find(answer) if len(answer) == 1 else -1
    index = int(value) if is_integer or answer.isdecimal() else index
    if not 0 <= index < len(options):
        raise DataError(
            f'{record.where}: the answer "{answer}" is none of the options {", ".join(options)} '
            f"and not an index from 0 to {len(options) - 1}.{did_you_mean(answer, options)}"
        )
    return options[index]


def _fill_template(template: str, record: Record) -> str:
    """Replace every {column} in a template with the record's value in that column."""
    return re.sub(r"\{([^{}]+)\}", lambda name: str(record.value(name[1])), template)


def truncate_left(lm: LanguageModel, prompt: str, max_new_tokens: int) -> str:
    """Remove the beginning of a prompt if the prompt is too long for the model.

    Returns the remaining prompt. For a decoder, it leaves room for an answer of `max_new_tokens`
    tokens.

    Raises:
        TriviumError: there is no room for any prompt.
    """
    limit = lm.spec.max_length
    if limit is None:
        return prompt
    tokenizer = lm.source_tokenizer
    if lm.spec.family == "encoder-decoder":
        capacity = limit - lm.source_template.count_special(paired=False)
    else:
        capacity = limit - len(tokenizer.prefix_ids) - max_new_tokens
    if capacity < 1:
        raise TriviumError(
            f"max_new_tokens is {max_new_tokens}: this leaves no room for a prompt in the model's "
            f"{limit} positions."
        )
    # A truncated text may have more tokens when it is tokenized again, so check again.
    while len(offsets := tokenizer.encode(prompt, add_special_tokens=False).offsets) > capacity:
        prompt = prompt[max(1, offsets[-capacity][0]) :]
    return prompt


def evaluate_few_shot(
    lm: LanguageModel,
    prompts: Sequence[tuple[PromptQuestion, str]],
    *,
    normalise: Normalise = "sum",
    max_new_tokens: int = 32,
    progress: Callable[[int], None] = lambda count: None,
) -> Metrics:
    """Answer questions with few-shot prompts, and return the accuracy.

    The model's answer is the most probable option after the prompt. If a question has no options,
    an answer is generated up to the end of the line.

    Args:
        lm: the model.
        prompts: the questions with their prompts, from `build_prompts`.
        normalise: how the log-probabilities of options are normalized before they are compared: not
            at all ("sum"), by the number of tokens ("token") or by the number of bytes ("byte").
        max_new_tokens: the maximum number of tokens of a generated answer.
        progress: called with the number of answered questions.

    Returns:
        The metrics `accuracy`, `accuracy_low` and `accuracy_high` (its 95 % confidence interval),
        and `majority`, the accuracy of always giving the most frequent answer.

    Raises:
        SpecError: a question has no options and the model cannot generate text.
    """
    rows: list[dict[str, Any]] = []
    for question, text in prompts:
        if question.options:
            answer = _choose_best_option(lm, text, question, normalise)
        else:
            # In most tokenizers the space before a word is part of the word's token. Therefore the
            # prompt must not end with a space.
            text = truncate_left(lm, text.rstrip(" "), max_new_tokens)
            answer = lm.generate(text, max_new_tokens=max_new_tokens, stop=["\n"], temperature=0.0)
        right = answer.split() == question.answer.split()
        row = {"where": question.where, "answer": question.answer}
        rows.append(row | {"predicted": answer, "right": right})
        progress(len(rows))
    accuracy = sum(row["right"] for row in rows) / len(rows)
    majority = max(Counter(question.answer for question, _ in prompts).values()) / len(rows)
    low, high = compute_wilson_interval(accuracy, len(rows))
    values = {"accuracy": accuracy, "accuracy_low": low, "accuracy_high": high}
    return Metrics(values | {"majority": majority}).with_examples(rows)


def compute_wilson_interval(fraction: float, num_cases: int) -> tuple[float, float]:
    """Return the 95 % confidence interval (low, high) of a fraction of cases (Wilson 1927)."""
    squared = 1.96**2 / num_cases
    center = fraction + squared / 2
    width = math.sqrt(fraction * (1 - fraction) * squared + squared**2 / 4)
    return (center - width) / (1 + squared), (center + width) / (1 + squared)


def _choose_best_option(
    lm: LanguageModel, prompt: str, question: PromptQuestion, normalise: Normalise
) -> str:
    """Return the option with the largest log-probability after the prompt.

    The log-probability may be divided by the number of tokens or bytes, depending on `normalise`.
    """
    options, values = question.options, []
    scores = continuation_scores(lm, prompt, options, after=question.after)
    for option, score in zip(options, scores):
        units = {"sum": 1, "token": max(1, score.num_tokens), "byte": len(option.encode())}
        values.append(score.total / units[normalise])
    return options[values.index(max(values))]
