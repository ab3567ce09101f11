"""`trivium prompt`: zero- and few-shot questions, nothing trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast

import typer

from trivium.cli.counting import Counting
from trivium.errors import TriviumError
from trivium.evaluate.choices import Normalise, Share
from trivium.evaluate.prompt import Answered, Asking, PromptResult
from trivium.workflows.prompt import TaskFile, first_prompt, prompt

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium prompt runs/gpt --task reviews.jsonl --shots 4 --options negative,positive

  trivium prompt runs/bert --task reviews.jsonl --options bad,great \
--template "{text} It was {answer}."

  trivium prompt runs/gpt --task piqa.jsonl --normalise byte --json

  trivium prompt runs/gpt --task questions.jsonl --shots 2 --show
"""


@app.command(name="prompt", epilog=_EPILOG)
def prompt_(
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint or a saved model.")],
    task: Annotated[
        Path,
        typer.Option(
            help="JSON lines: text and label; a question with choices; question and answer; ..."
        ),
    ],
    shots: Annotated[int, typer.Option(help="Answered examples in the prompt.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Decides which examples these are.", min=0)] = 0,
    template: Annotated[
        str | None,
        typer.Option(help="How an example is written, such as '{text} It was {answer}.'"),
    ] = None,
    options: Annotated[
        str | None, typer.Option(help="Words for labels 0, 1, ..., with commas between.")
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="Draw answered examples from this file instead.")
    ] = None,
    normalise: Annotated[
        str, typer.Option(help="Compare options by their sum, or per token, or per byte.")
    ] = "sum",
    blank: Annotated[
        str | None,
        typer.Option(help="For an encoder-decoder that fills blanks, what marks one."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Of a free answer.", min=1)] = 32,
    extract: Annotated[
        str | None, typer.Option(help="Compare only what this pattern finds last in an answer.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Ask only the first so many.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    show: Annotated[bool, typer.Option("--show", help="Print the first prompt and stop.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a question, then one for them all.")
    ] = False,
) -> None:
    """Ask a model questions with answered examples before them, and report its accuracy.

    Options are scored, and the most probable is the answer; without options the model writes one.
    """
    asking = Asking(
        shots,
        seed,
        _unescaped(template),
        cast(Normalise, normalise),
        blank,
        max_new_tokens,
        extract,
    )
    words = [] if options is None else [word.strip() for word in options.split(",")]
    if not all(words):
        raise TriviumError(f"--options {options!r} has an empty word: write them as bad,good.")
    file = TaskFile(task, examples, words, limit)
    if show:
        typer.echo(first_prompt(file, asking))
        return
    counting, count = Counting("questions"), 0

    def on_answer(found: Answered) -> None:
        nonlocal count
        count += 1
        counting(count)
        if as_json:
            typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))

    result = prompt(model, file, asking, device=device, on_answer=on_answer)
    counting.clear()
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        typer.echo("\n".join(_lines(result, task)))


def _lines(result: PromptResult, task: Path) -> list[str]:
    share = result.accuracy
    lines = [
        f"{task}: {share.count} questions ({result.kind}), {result.asking.shots} shots",
        f"  accuracy  {_with_interval(share)}",
    ]
    for name, other in result.by_normalisation.items():
        if name != result.asking.normalise:
            lines.append(f"  by {name:<6} {other.value:.3f}")
    lines.append(f"  majority  {result.majority:.3f}  (the most frequent answer, always)")
    if result.num_cut:
        lines.append(f"  {result.num_cut} prompts were too long and lost text from their left")
    return lines


def _with_interval(share: Share) -> str:
    low, high = share.interval
    return f"{share.value:.3f}  (95 % interval {low:.3f} to {high:.3f})"


def _unescaped(template: str | None) -> str | None:
    r"""A template as the shell gives it, with \n resolved."""
    return None if template is None else template.replace("\\n", "\n")
