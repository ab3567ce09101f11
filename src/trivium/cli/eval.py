"""`trivium eval`: how good a model is, on files and on tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from trivium.cli.counting import Counting
from trivium.errors import TriviumError
from trivium.language_model import LanguageModel, load
from trivium.language_model.loading import Weights
from trivium.workflows.evaluate import (
    TASKS,
    EvaluateOptions,
    Evaluation,
    evaluate,
    evaluate_with_harness,
    taught_section,
    trained_window,
    write_results,
)

app = typer.Typer(add_completion=False)


_EPILOG = """Examples:

  trivium eval runs/gpt valid.txt

  trivium eval runs/gpt blimp.jsonl piqa.jsonl --json

  trivium eval runs/gpt lambada.txt --task last-word --out results.json

  trivium eval runs/names test.conll

  trivium eval runs/gpt valid.txt --quantize int8

  trivium eval runs/gpt --lm-eval my_task --tasks-folder tasks/
"""


@app.command(name="eval", epilog=_EPILOG)
def eval_(
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint or a saved model.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Text, or examples as JSON lines; also compressed."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(TASKS)}; else told from each file.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many documents or examples.", min=1)
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Perplexity: tokens seen together; else as in training.", min=2),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Perplexity: tokens a window moves on by; else half of it.", min=1),
    ] = None,
    separator: Annotated[
        str, typer.Option(help="Perplexity: what parts documents: blank, line, file, or a string.")
    ] = "blank",
    text_field: Annotated[str, typer.Option(help="Perplexity: the field with the text.")] = "text",
    batch_size: Annotated[int, typer.Option(help="Perplexity: rows at a time.", min=1)] = 8,
    lm_eval: Annotated[
        list[str] | None, typer.Option(help="A task of lm-evaluation-harness; may be repeated.")
    ] = None,
    tasks_folder: Annotated[
        Path | None, typer.Option(help="Where YAML files of your own such tasks are.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(help="--lm-eval: answered examples in the prompt.", min=0)
    ] = None,
    quantize: Annotated[
        Weights | None,
        typer.Option(help="Also with weights of 8 or 4 bits, side by side.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write all results as JSON.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a file.")] = False,
) -> None:
    """Loss, perplexity and bits per byte of text; accuracy on probes; metrics of tasks.

    A model that `trivium finetune` taught a task is measured by that task. Otherwise what a file is
    for is told from its content: sentence_good and sentence_bad are minimal pairs; goal, sol1, sol2
    or premise, choice1, choice2 or a list of choices are multiple choice; all else is text.
    """
    if not files and not lm_eval:
        raise TriviumError("nothing to evaluate on: give a FILE, or a task with --lm-eval.")
    counting = Counting("done")
    options = EvaluateOptions(
        limit=limit,
        window=window,
        stride=stride,
        batch_size=batch_size,
        separator=separator,
        text_field=text_field,
        progress=counting,
    )

    def evaluate_all(lm: Path | LanguageModel, options: EvaluateOptions) -> Iterator[Evaluation]:
        yield from evaluate(lm, files or [], task=task, options=options, device=device)
        if lm_eval:
            yield from evaluate_with_harness(
                lm, lm_eval, folder=tasks_folder, shots=shots, limit=limit, device=device
            )

    results = []
    found_one = evaluate_all(model, options)
    if quantize is not None:
        found_one = _with_quantized(model, evaluate_all, options, device, quantize)
    for found in found_one:
        counting.clear()
        _show(found, as_json, first=not results)
        results.append(found)
    if out is not None:
        write_results(out, results)


def _with_quantized(
    model: Path,
    evaluate_all: Callable[[LanguageModel, EvaluateOptions], Iterator[Evaluation]],
    options: EvaluateOptions,
    device: str,
    quantize: Weights,
) -> Iterator[Evaluation]:
    """Results of a model as it is stored, those with quantised weights among their metrics."""
    stored, small = load(model, device=device), load(model, device=device, quantize=quantize)
    window = options.window or trained_window(model, stored)
    options = replace(options, window=window, section=taught_section(model))
    both = zip(evaluate_all(stored, options), evaluate_all(small, options), strict=True)
    for found, other in both:
        yield replace(found, metrics={**found.metrics, quantize: other.metrics})


def _show(found: Evaluation, as_json: bool, *, first: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    lines = [f"{found.file}: {found.task}"]
    metrics = dict(found.metrics)
    quantize = next((name for name in get_args(Weights) if name in metrics), None)
    other = metrics.pop(quantize) if quantize else {}
    plain = {name: v for name, v in metrics.items() if not isinstance(v, dict)}
    width = max(map(len, plain), default=0)
    if quantize:
        lines += [f"  {'':<{width}}  {'stored':>10}  {quantize:>10}  {'change':>8}"]
        lines += [f"  {name:<{width}}  {_beside(v, other.get(name))}" for name, v in plain.items()]
    else:
        lines += [f"  {name:<{width}}  {_number(value)}" for name, value in plain.items()]
    for groups in (v for v in metrics.values() if isinstance(v, dict)):
        for group, shares in groups.items():
            lines += _group(group, shares)
    typer.echo(("" if first else "\n") + "\n".join(lines))


def _beside(value: Any, other: Any) -> str:
    """A number of the stored weights, that of the quantised ones, and by how much they differ."""
    shown = f"{_number(value):>10}  {_number(other):>10}"
    if isinstance(value, float) and isinstance(other, float) and value:
        return f"{shown}  {other / value - 1:>+8.2%}"
    return shown


def _group(name: str, shares: dict[str, Any]) -> list[str]:
    """One line a member of a group: its accuracy and how many examples it has."""
    width = max(map(len, shares), default=0)
    return [f"  {name}"] + [
        f"    {member:<{width}}  {_number(found['accuracy'])}  of {found['count']}"
        for member, found in shares.items()
    ]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"
    return "-" if value is None else str(value)
