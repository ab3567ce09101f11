"""Few-shot prompting of a model on a file of questions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from trivium.data.records import read_records
from trivium.data.sources import Paths
from trivium.errors import DataError
from trivium.evaluate.prompting import (
    FewShot,
    PromptQuestion,
    few_shot,
    few_shot_metrics,
    prompt_of,
    read_questions,
)
from trivium.language_model import LanguageModel, load
from trivium.objectives import Metrics
from trivium.workflows.evaluate import Model


def prompt(
    model: Model,
    data: Paths,
    how: FewShot | None = None,
    *,
    examples: Paths | None = None,
    limit: int | None = None,
    device: str = "auto",
    progress: Callable[[int, PromptQuestion, str, bool], None] | None = None,
) -> Metrics:
    """Accuracy of a model on questions with solved examples before each.

    Args:
        model: a run, a checkpoint, a saved model, a Hugging Face folder or name, or a loaded one.
        data: records with a column `answer` or `label`; see `evaluate.prompting.read_questions`.
        how: shots, template, options.
        examples: records that solved examples are drawn from; default: the other questions.
        limit: only the first questions.
        device: of a model that is loaded.
        progress: called with the number of questions done, and the last one with its answer.

    Raises:
        DataError: a file that cannot be read, a column that is missing, too few examples.
        TriviumError: a setting outside its range.
    """
    how = how or FewShot()
    questions, pool = _questions(data, how, examples, limit)
    prompt_of(questions, 0, how, pool)  # a template that does not fit is found before loading
    lm = model if isinstance(model, LanguageModel) else load(model, device=device)
    answers = []
    for answer in few_shot(lm, questions, how, pool):
        answers.append(answer)
        if progress:
            progress(len(answers), questions[len(answers) - 1], *answer)
    return few_shot_metrics(questions, answers)


def first_prompt(data: Paths, how: FewShot | None = None, *, examples: Paths | None = None) -> str:
    """The prompt of the first question, as `prompt` makes it."""
    how = how or FewShot()
    questions, pool = _questions(data, how, examples, None)
    return prompt_of(questions, 0, how, pool)


def _questions(
    data: Paths, how: FewShot, examples: Paths | None, limit: int | None
) -> tuple[list[PromptQuestion], list[PromptQuestion] | None]:
    """The questions, and those that solved examples are drawn from if they are others."""
    pool = None if examples is None else read_questions(list(read_records(examples)), how)
    records = list(itertools.islice(read_records(data), limit))
    if not records:
        raise DataError(f"{data} holds no question.")
    return read_questions(records, how), pool
