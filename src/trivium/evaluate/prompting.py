"""Few-shot prompting (Brown et al. 2020): solved examples before a question, nothing is trained."""

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
from trivium.objectives.classification import as_label
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
    """A question: the text before its answer and after it, the answer, and all options."""

    before: str
    after: str
    answer: str
    options: tuple[str, ...]
    where: str


def fill_prompts(
    records: Iterable[Record],
    *,
    shots: int = 0,
    seed: int = 0,
    template: str | None = None,
    options: Sequence[str] = (),
    examples: Iterable[Record] | None = None,
    instruction: str = "",
) -> Iterator[tuple[PromptQuestion, str]]:
    """Every question with its prompt: some solved examples, then the question itself.

    Args:
        records: they have a column `answer` or `label` (or `target`, `output`). Beside a list of
            `choices` an integer is the index of a choice, counted from 0. A string is the text of
            a choice or, if there is no such choice, an index or a capital letter (A is 0).
        shots: solved examples before each question.
        seed: with the number of a question, decides which examples these are.
        template: the text of an example, with {column} for a column and {answer} for its answer;
            default: a line "Column: value" for each, the answer last.
        options: the words for labels 0, 1, ...; or the only answers there are.
        examples: records that solved examples are drawn from; default: the other questions.
        instruction: stands once before them.

    Raises:
        DataError: no question, a column that is missing, an answer that is no option, or too few
            examples.
    """
    questions = _questions(records, template, options)
    if not questions:
        raise DataError("The data holds no question.")
    pool = questions if examples is None else _questions(examples, template, options)
    count = len(pool) - 1 if examples is None else len(pool)  # without the question itself
    if not 0 <= shots <= count:
        raise DataError(f"{shots} shots, but there are only {count} examples.")
    for index, one in enumerate(questions):
        drawn = random.Random(f"{seed} {index}").sample(range(count), shots)
        if examples is None:
            drawn = [i + 1 if i >= index else i for i in drawn]
        solved = [f"{pool[i].before}{pool[i].answer}{pool[i].after}" for i in drawn]
        head = [instruction] if instruction else []
        yield one, "\n\n".join([*head, *solved, one.before])


def _questions(
    records: Iterable[Record], template: str | None, words: Sequence[str]
) -> list[PromptQuestion]:
    rows, questions = list(records), []
    answers = [_SCHEMA.resolve(record)["answer"] for record in rows]
    for record, column in zip(rows, answers):
        if not words and "options" not in record.columns:
            value = record.named(column)
            is_label = column.lower() == "label" or json_type(value) in ("null", "NaN")
            record[column] = as_label(value, record.where) if is_label else value
    labels = sorted({str(record[column]) for record, column in zip(rows, answers)})
    for record, column in zip(rows, answers):
        listed, answer = record.columns.get("options"), str(record[column])
        choices = _choices(record, listed) if listed else ()
        usual = labels if column.lower() == "label" else ()
        options = tuple(map(str, choices or words or usual))
        if options:
            answer = _option(record, column, options, is_index=bool(choices))
        columns = [name for name in record if name not in (column, listed)]
        lines = [f"{name.capitalize()}: {{{name}}}" for name in columns]
        text = template or "\n".join([*lines, "Answer: {answer}"])
        if text.count("{answer}") != 1:
            raise DataError(f"the template {template!r} must have {{answer}} in it once.")
        before, after = (_fill(part, record) for part in text.split("{answer}"))
        questions.append(PromptQuestion(before, after, answer, options, record.where))
    return questions


def _choices(record: Record, column: str) -> list[Any]:
    """The list of choices in a column; in a table it is a list in JSON."""
    choices: Any = record[column] or []
    with contextlib.suppress(ValueError):
        choices = json.loads(choices) if record.untyped and choices else choices
    if not isinstance(choices, list):
        raise DataError(f"{record.name(column)} is {json_type(choices)}: give a list of choices.")
    return choices


def _option(record: Record, column: str, options: tuple[str, ...], *, is_index: bool) -> str:
    """The option that the answer in a column names; `is_index`: an integer is always an index.

    The cells of a table have no types: whatever looks like an integer is one.
    """
    value, answer = record[column], str(record[column])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_integer = type(value) is int or (record.untyped and answer.isdecimal())
    if answer in options and not (is_index and is_integer):
        return answer
    number = string.ascii_uppercase.find(answer) if len(answer) == 1 else -1
    number = int(value) if is_integer or answer.isdecimal() else number
    if not 0 <= number < len(options):
        raise DataError(
            f'{record.where}: the answer "{answer}" is none of the options {", ".join(options)}, '
            f"nor an index from 0 to {len(options) - 1}.{did_you_mean(answer, options)}"
        )
    return options[number]


def _fill(template: str, record: Record) -> str:
    """The template with the values of columns in place of {column}."""
    return re.sub(r"\{([^{}]+)\}", lambda name: str(record.value(name[1])), template)


def truncate_left(lm: LanguageModel, prompt: str, max_new_tokens: int) -> str:
    """The end of a prompt that leaves positions for `max_new_tokens`.

    Raises:
        TriviumError: no prompt at all would fit.
    """
    limit = lm.spec.max_length
    if limit is None:
        return prompt
    tokenizer = lm.source_tokenizer
    if lm.spec.family == "encoder-decoder":
        capacity = limit - lm.source_template.num_special(paired=False)
    else:
        capacity = limit - len(tokenizer.prefix_ids) - max_new_tokens
    if capacity < 1:
        raise TriviumError(
            f"max_new_tokens is {max_new_tokens}: no prompt fits beside it into the model's "
            f"{limit} positions."
        )
    # The rest of a text may have a token more than it had inside the text.
    while len(offsets := tokenizer.encode(prompt, add_special_tokens=False).offsets) > capacity:
        prompt = prompt[max(1, offsets[-capacity][0]) :]
    return prompt


def few_shot(
    lm: LanguageModel,
    prompts: Sequence[tuple[PromptQuestion, str]],
    *,
    normalise: Normalise = "sum",
    max_new_tokens: int = 32,
    progress: Callable[[int], None] = lambda count: None,
) -> Metrics:
    """Accuracy on the questions of `fill_prompts`, its 95 % confidence interval, and what always
    the most frequent answer reaches.

    The most probable option after the prompt is the answer; without options it is generated, up to
    the end of the line.

    Args:
        normalise: options are compared by log-probability, in all, per token or per byte.
        max_new_tokens: of a generated answer.
        progress: called with the number of questions done.

    Raises:
        SpecError: questions without options need a model that generates.
    """
    rows: list[dict[str, Any]] = []
    for one, text in prompts:
        if one.options:
            answer = _best_option(lm, text, one, normalise)
        else:
            # Tokenizers put the space before a word into the word: no prompt must end with one.
            text = truncate_left(lm, text.rstrip(" "), max_new_tokens)
            answer = lm.generate(text, max_new_tokens=max_new_tokens, stop=["\n"], temperature=0.0)
        right = answer.split() == one.answer.split()
        row = {"where": one.where, "answer": one.answer, "predicted": answer, "right": right}
        rows.append(row)
        progress(len(rows))
    share = sum(row["right"] for row in rows) / len(rows)
    majority = max(Counter(one.answer for one, _ in prompts).values()) / len(rows)
    low, high = _wilson(share, len(rows))
    values = {"accuracy": share, "accuracy_low": low, "accuracy_high": high, "majority": majority}
    return Metrics(values).with_examples(rows)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, also of few cases (Wilson 1927)."""
    squared = 1.96**2 / count
    middle, width = share + squared / 2, math.sqrt(share * (1 - share) * squared + squared**2 / 4)
    return (middle - width) / (1 + squared), (middle + width) / (1 + squared)


def _best_option(lm: LanguageModel, text: str, one: PromptQuestion, normalise: Normalise) -> str:
    """The option of the largest log-probability per unit of `normalise`."""
    values, scores = [], continuation_scores(lm, text, one.options, after=one.after)
    for option, score in zip(one.options, scores):
        units = {"sum": 1, "token": max(1, score.num_tokens), "byte": len(option.encode())}
        values.append(score.total / units[normalise])
    return one.options[values.index(max(values))]
