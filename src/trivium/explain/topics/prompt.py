"""Explanation of prompting: zero-shot and few-shot prompts, and the answers of a model."""

from __future__ import annotations

import math

from trivium.data.records import Record
from trivium.errors import TriviumError
from trivium.evaluate.prompting import PromptQuestion, build_prompts, evaluate_few_shot
from trivium.explain.page import Bilingual, Formula, Heading, Page, Part, Table, get_text, render
from trivium.inference.score import continuation_scores
from trivium.language_model import LanguageModel
from trivium.model_loading import load

_TEXT = get_text("prompt.text")
_EXAMPLES = {
    get_text("prompt.good_example"): "1",
    get_text("prompt.bad_example"): "0",
    get_text("prompt.second_good_example"): "1",
}
_QUESTION = get_text("prompt.question")
_INSTRUCTION = get_text("prompt.instruction")
_SHORT = get_text("prompt.short_question")
_KINDS = {
    get_text("prompt.zero_shot"): (_QUESTION, "", 0),
    get_text("prompt.few_shot"): (_QUESTION, "", 1),
    get_text("prompt.one_instruction_several"): (_SHORT, _INSTRUCTION, 1),
}


def explain(
    text: str | None = None,
    *,
    example: list[str] | None = None,
    question: str | None = None,
    instruction: str | None = None,
    model: str | None = None,
) -> Page:
    """Fill in prompts for sentiment classification, and let a model answer them.

    Args:
        text: The text to classify.
        example: A few-shot example, TEXT=ANSWER. Repeatable.
        question: The question, with placeholders {text} and {answer}.
        instruction: An instruction, placed once before several examples.
        model: The model that answers the prompts.
    """
    solved = dict(map(_parse_example, example)) if example else _EXAMPLES
    lm = None if model is None else load(model)
    parts: list[Part] = []
    rows, data = [], []
    for name, (template, head, few) in _KINDS.items():
        template = question or template if template is _QUESTION else template
        head = instruction or head if head else ""
        shown = {}
        for language in ("en", "zh"):
            examples = [_make_record(render(t, language), answer) for t, answer in solved.items()]
            [(filled, prompt)] = build_prompts(
                [_make_record(text or render(_TEXT, language), next(iter(solved.values())))],
                examples=examples,
                shots=few * len(examples),
                template=render(template, language),
                instruction=render(head, language),
                options=sorted({*solved.values()}),
            )
            shown[language] = prompt
            answers = {} if lm is None else _answer_prompt(lm, filled, prompt)
            data.append({"kind": name.en, "language": language, "prompt": prompt, **answers})
            rows.append([name, language, *answers.values()])
        parts += [Heading(name), Formula(Bilingual(**shown))]
    if lm is not None:
        columns = [
            get_text("prompt.prompt"),
            get_text("prompt.language"),
            get_text("prompt.answer"),
            get_text("prompt.probability_among_options"),
        ]
        parts.append(Table(columns, rows))
    parts.append(get_text("prompt.note"))
    return Page(get_text("prompt.prompts"), parts, {"prompts": data})


def _parse_example(example: str) -> tuple[str, str]:
    """Split a few-shot example TEXT=ANSWER at its last equals sign.

    Returns the text and the answer.

    Raises TriviumError if the example is invalid.
    """
    text, sign, answer = example.rpartition("=")
    if not (sign and text.strip() and answer.strip()):
        raise TriviumError(
            f'the example "{example}" must be TEXT=ANSWER, such as "How terrible=0".'
        )
    return text.strip(), answer.strip()


def _make_record(text: str, answer: str) -> Record:
    """Create a record with the columns `text` and `answer`."""
    return Record({"text": text, "answer": answer}, f'"{text}"')


def _answer_prompt(
    lm: LanguageModel, question: PromptQuestion, prompt: str
) -> dict[str, str | float]:
    """Return a model's most probable option for a prompt, and the probability of this option.

    The probabilities are normalized over all options.
    """
    [row] = evaluate_few_shot(lm, [(question, prompt)]).predictions
    scores = continuation_scores(lm, prompt, question.options, after=question.after)
    total = dict(zip(question.options, (math.exp(one.total) for one in scores)))
    answer = str(row["predicted"])
    return {"answer": answer, "probability": total[answer] / (sum(total.values()) or 1.0)}
