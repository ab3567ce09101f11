"""Zero- and few-shot prompting: examples in the prompt, the options scored, nothing trained."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.data import permutation
from trivium.errors import DataError, SpecError, TriviumError
from trivium.evaluate.choices import NORMALISATIONS, ChoiceScores, Normalise, Share, score_choice
from trivium.evaluate.examples import Example, Layout, read_examples
from trivium.evaluate.template import Template
from trivium.evaluate.writing import write_until
from trivium.language_model import LanguageModel

_BETWEEN = "\n\n"  # examples of a prompt
_END_OF_LINE = "\n"


@dataclass(frozen=True)
class Asking:
    """How examples are asked.

    Args:
        shots: answered examples before each question.
        seed: decides, with the question's number, which examples these are.
        template: how an example is written, `{answer}` where its answer stands; None: by layout.
        normalise: what options are compared by: log-probability in all, a token or a byte.
        blank: for an encoder-decoder that fills blanks, what marks one: "<extra_id_0>".
        max_new_tokens: of a free answer.
        extract: of a free answer and of the right one, only what this regular expression finds
            last (its first group, if it has one).

    Raises:
        TriviumError: a setting outside its range.
    """

    shots: int = 0
    seed: int = 0
    template: str | None = None
    normalise: Normalise = "sum"
    blank: str | None = None
    max_new_tokens: int = 32
    extract: str | None = None

    def __post_init__(self) -> None:
        if self.shots < 0:
            raise TriviumError(f"shots is {self.shots}, but must be 0 or more.")
        if self.normalise not in NORMALISATIONS:
            known = ", ".join(NORMALISATIONS)
            raise TriviumError(f"normalise is {self.normalise!r}, but must be one of {known}.")
        try:
            re.compile(self.extract or "")
        except re.error as error:
            raise TriviumError(f"extract is no regular expression: {error}.") from None


@dataclass(frozen=True)
class Questions:
    """The examples that are asked, and those that answered ones are drawn from.

    `pool` None: from the asked ones, but never the one that is asked.
    """

    layout: Layout
    asked: Sequence[Example]
    pool: Sequence[Example] | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """One question: what the model chose or wrote, and what is right."""

    where: str
    prompt: str
    answer: str
    predicted: str | None
    right: bool
    num_cut: int
    scores: ChoiceScores | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the prompt."""
        found: dict[str, Any] = {
            "where": self.where,
            "answer": self.answer,
            "predicted": self.predicted,
            "right": self.right,
            "num_cut": self.num_cut,
        }
        return found if self.scores is None else {**found, "options": self.scores.to_dict()}


@dataclass(frozen=True)
class PromptResult:
    """How often a model was right.

    Args:
        kind: "choice", "classification", "minimal-pairs" or "answer".
        asking: how it was asked.
        accuracy: by what was asked for; of options also by the other normalisations.
        majority: how often the answer that is right most often is right.
        num_cut: prompts that were cut from the left, because they were too long.
    """

    kind: str
    asking: Asking
    accuracy: Share
    majority: float
    num_cut: int
    by_normalisation: dict[str, Share] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = {
            "kind": self.kind,
            "shots": self.asking.shots,
            "seed": self.asking.seed,
            **self.accuracy.to_dict(),
            "majority": self.majority,
            "num_cut": self.num_cut,
        }
        if self.by_normalisation:
            found["normalise"] = self.asking.normalise
            for name, share in self.by_normalisation.items():
                found[f"accuracy_by_{name}"] = share.value
        return found


def read_questions(
    task: str | Path,
    *,
    examples: str | Path | None = None,
    options: Sequence[str] = (),
    limit: int | None = None,
) -> Questions:
    """The questions of a file, and where answered examples for the prompt come from.

    Args:
        task: JSON lines; what they are is told from their fields (`evaluate.examples`).
        examples: another file of the same layout to draw from; its labels are those there are.
        options: words for the labels.
        limit: ask only the first so many; answered examples still come from the whole file.

    Raises:
        DataError: an unknown layout, a field or label that is missing or unknown.
    """
    if examples is None:
        layout, found = read_examples(task, options=options)
        return Questions(layout, found[:limit], found if limit else None)
    layout, pool = read_examples(examples, options=options)
    _, asked = read_examples(task, layout=layout)
    return Questions(layout, asked[:limit], pool)


def ask(lm: LanguageModel, questions: Questions, asking: Asking) -> Iterator[Answered]:
    """Ask every question, one at a time: its numbers depend on nothing beside it.

    A free answer ends with its line, or with an empty one where known answers have several lines,
    or where the template goes on.

    Raises:
        DataError: fewer examples than shots, or a template that names an unknown field.
        SpecError: free answers asked of a model that does not write.
    """
    free = questions.layout.kind == "answer"
    if free and "generate" not in lm.verbs:
        raise SpecError("these questions have no options, and this model writes no answers.")
    known = questions.asked if questions.pool is None else questions.pool
    several_lines = any(_END_OF_LINE in example.answer.strip() for example in known)
    stop = _BETWEEN if several_lines else _END_OF_LINE
    for index, example in enumerate(questions.asked):
        before, after = prompt_of(questions, index, asking)
        if free:
            stops = [stop, after.strip()] if after.strip() else [stop]
            yield _write(lm, example, before, stops, asking)
        else:
            yield _choose(lm, example, before, after, asking)


def prompt_of(questions: Questions, index: int, asking: Asking) -> tuple[str, str]:
    """The text before the answer of a question, with its examples, and the text after it.

    Raises:
        DataError: fewer examples than shots, or a template that names an unknown field.
    """
    template = Template(asking.template or questions.layout.template)
    asked = questions.asked[index]
    pool = questions.asked if questions.pool is None else questions.pool
    own = index if index < len(pool) and pool[index] is asked else None
    shots = [
        template.filled(pool[i].fields, pool[i].answer, pool[i].where)
        for i in draw(asking.seed, index, len(pool), asking.shots, leave_out=own)
    ]
    before, after = template.around(asked.fields, asked.where)
    return _BETWEEN.join([*shots, before]), after


def draw(
    seed: int, index: int, count: int, size: int, *, leave_out: int | None = None
) -> list[int]:
    """`size` different numbers below `count` for question `index`: a function of these alone.

    Raises:
        DataError: there are not as many.
    """
    left = count - (leave_out is not None)
    if size > left:
        raise DataError(f"{size} shots are asked for, but there are only {left} examples.")
    if not size:
        return []
    order = permutation(seed, index, count)[: size + 1].tolist()
    return [number for number in order if number != leave_out][:size]


def summarise(questions: Questions, answered: Sequence[Answered], asking: Asking) -> PromptResult:
    """What all the answers come to."""
    count, kind = len(answered), questions.layout.kind
    by_normalisation = {}
    if kind != "answer":
        right = {
            name: sum(
                found.scores is not None and _said(found.scores, example, name) == example.answer
                for found, example in zip(answered, questions.asked)
            )
            for name in NORMALISATIONS
        }
        by_normalisation = {name: Share(right[name], count) for name in NORMALISATIONS}
    answers = Counter(
        example.index if kind in ("choice", "minimal-pairs") else example.answer
        for example in questions.asked[:count]
    )
    return PromptResult(
        kind,
        asking,
        Share(sum(found.right for found in answered), count),
        max(answers.values(), default=0) / max(count, 1),
        sum(found.num_cut > 0 for found in answered),
        by_normalisation,
    )


def _choose(
    lm: LanguageModel, example: Example, before: str, after: str, asking: Asking
) -> Answered:
    options = [option.strip() for option in example.options]
    scores = score_choice(lm, before, options, after=after, blank=asking.blank)
    said = _said(scores, example, asking.normalise)
    right = said == example.answer
    return Answered(example.where, before, example.answer, said, right, scores.num_cut, scores)


def _said(scores: ChoiceScores, example: Example, normalise: Normalise) -> str | None:
    """The option that was chosen; None where two are exactly as good."""
    best = scores.best(normalise)
    return None if best is None else example.options[best]


def _write(
    lm: LanguageModel, example: Example, before: str, stops: Sequence[str], asking: Asking
) -> Answered:
    """A free answer, to be compared with the right one.

    Tokenizers put the blank before a word into the word, so the prompt must not end with one.
    """
    text, num_cut = write_until(lm, before.rstrip(" "), stops, max_new_tokens=asking.max_new_tokens)
    said, wanted = _extracted(text, asking.extract), _extracted(example.answer, asking.extract)
    return Answered(example.where, before, wanted, said, said == wanted, num_cut)


def _extracted(text: str, pattern: str | None) -> str:
    """A text with single blanks, or what the pattern finds last in it; empty: nothing found."""
    if pattern is not None:
        found = list(re.finditer(pattern, text))
        if not found:
            return ""
        text = found[-1][1] if found[-1].re.groups else found[-1][0]
    return " ".join(text.split())
