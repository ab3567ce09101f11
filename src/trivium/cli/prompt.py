"""`trivium prompt`: evaluate zero-shot and few-shot prompting.

Examples:

  trivium prompt runs/gpt reviews.jsonl --shots 4 --options negative,positive

  trivium prompt runs/bert reviews.jsonl --options bad,great --template "{text} It was {answer}."

  trivium prompt runs/gpt piqa.jsonl --normalise byte --json

  trivium prompt runs/gpt questions.jsonl --shots 2 --show
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import load, print_json
from trivium.data.documents import ReadOptions
from trivium.data.records import RecordOptions, read_records
from trivium.errors import TriviumError
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated
from trivium.progress import ProgressLine, format_count


@opt.with_options(ReadOptions, exclude=["separator", "text_field"])
def prompt(
    model: opt.Model,
    data: Annotated[list[str], typer.Argument(metavar="FILE...")],
    shots: Annotated[int, typer.Option(min=0)] = 0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    template: Annotated[str | None, typer.Option(show_default="a line per column")] = None,
    options: str | None = None,
    examples: Path | None = None,
    instruction: str = "",
    normalise: Literal["sum", "token", "byte"] = "sum",
    max_new_tokens: opt.Positive = 32,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    device: opt.Device = "auto",
    show: bool = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    **data_options: Any,
) -> None:
    r"""Measure the accuracy on questions, with few-shot examples in the prompt and no training.

    The answer of the model is the most probable option. If there are no options, the answer is
    generated. \n in a template is a line break.

    Args:
        data: The questions: records with a column answer or label.
        shots: Number of few-shot examples in the prompt.
        seed: Seed for the choice of the few-shot examples.
        template: The text of an example, with placeholders {column} and {answer}.
        options: The possible answers, separated by commas, in the order of the labels 0, 1, ...
        examples: Draw the few-shot examples from this file instead of FILE.
        instruction: A text placed once before the examples and the question.
        normalise: Compare the log-probabilities of options as sums, per token or per byte.
        max_new_tokens: Maximum number of tokens of a generated answer.
        limit: Use only the first questions.
        show: Print the first prompt and stop.
        as_json: Print one JSON object per question, then the accuracy.
    """
    words = [word.strip() for word in options.split(",")] if options else []
    if not all(words):
        raise TriviumError(
            f"--options {options!r} contains an empty word: write the words as bad,good."
        )
    with exit_on_interrupt():
        from trivium.evaluate.prompting import build_prompts, evaluate_few_shot

    how = RecordOptions(**data_options)
    prompts = build_prompts(
        read_records(data, how),
        shots=shots,
        seed=seed,
        template=template.replace("\\n", "\n") if template else None,
        options=words,
        examples=None if examples is None else read_records(examples, how),
        instruction=instruction.replace("\\n", "\n"),
    )
    if show:
        typer.echo(next(prompts)[1])
        return
    log, prompts = ProgressLine(), list(islice(prompts, limit))
    lm = load(model, device=device)
    with log.running():
        metrics = evaluate_few_shot(
            lm,
            prompts,
            normalise=normalise,
            max_new_tokens=max_new_tokens,
            progress=lambda count: log.update(format_count(count, "question")),
        )
    if as_json:
        for row in (*metrics.predictions, metrics.values):
            print_json(row)
        return
    values = metrics.values
    note = translated(
        "prompt.confidence",
        questions=format_count(len(prompts), "question"),
        low=values["accuracy_low"],
        high=values["accuracy_high"],
    )
    typer.echo(f"accuracy  {values['accuracy']:.4f}  {note}")
    always = translated("prompt.majority")
    typer.echo(f"majority  {values['majority']:.4f}  {always}")
