"""Asking a model with examples in the prompt: a file of questions in, an accuracy out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trivium.evaluate.prompt import (
    Answered,
    Asking,
    PromptResult,
    Questions,
    ask,
    prompt_of,
    read_questions,
    summarise,
)
from trivium.language_model import LanguageModel, load


@dataclass(frozen=True)
class TaskFile:
    """What is asked.

    Args:
        path: JSON lines; their fields tell what they are (`evaluate.examples`).
        examples: another file that answered examples are drawn from; None: from the same.
        options: words for the labels of a classification, in the order of the labels.
        limit: ask only the first so many.
    """

    path: str | os.PathLike[str]
    examples: str | os.PathLike[str] | None = None
    options: Sequence[str] = ()
    limit: int | None = None


def prompt(
    model: str | os.PathLike[str] | LanguageModel,
    task: TaskFile | str | os.PathLike[str],
    asking: Asking | None = None,
    *,
    device: str = "auto",
    on_answer: Callable[[Answered], None] | None = None,
) -> PromptResult:
    """Ask a model every question of a file, with answered examples before each.

    Every question is computed by itself, and its examples follow from the seed and its number: the
    same to the last digit whatever is asked beside it.

    Args:
        model: a run, a checkpoint, a saved model, a Hugging Face folder, or a loaded one.
        task: the file of questions.
        asking: shots, seed, template, how options are compared.
        device: where a model that is loaded goes.
        on_answer: told every answer when it is there.

    Raises:
        DataError: a file that cannot be read, a label that is unknown, too few examples.
        TriviumError: a setting outside its range.
    """
    asking = asking or Asking()
    questions = _questions(task)
    if questions.asked:
        prompt_of(questions, 0, asking)  # a template that does not fit is told before a model loads
    lm = model if isinstance(model, LanguageModel) else load(model, device=device)
    answered = []
    for answer in ask(lm, questions, asking):
        answered.append(answer)
        if on_answer:
            on_answer(answer)
    return summarise(questions, answered, asking)


def first_prompt(task: TaskFile | str | os.PathLike[str], asking: Asking | None = None) -> str:
    """The prompt of the first question, with a mark where the answer is looked for.

    Raises:
        DataError: as `prompt`.
    """
    before, after = prompt_of(_questions(task), 0, asking or Asking())
    return f"{before}\u2588{after}"


def _questions(task: TaskFile | str | os.PathLike[str]) -> Questions:
    file = task if isinstance(task, TaskFile) else TaskFile(task)
    examples = None if file.examples is None else os.fspath(file.examples)
    return read_questions(
        os.fspath(file.path), examples=examples, options=file.options, limit=file.limit
    )
