"""`trivium eval`: perplexity, metrics of tasks, lm-evaluation-harness.

Examples:

  trivium eval runs/gpt valid.txt

  trivium eval runs/names test.conll --out results.json

  trivium eval runs/gpt valid.txt --quantize int8

  trivium eval runs/gpt --lm-eval my_task --tasks-folder tasks/
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import trivium
from trivium.cli import _options as opt
from trivium.cli import stored
from trivium.cli._shared import load, show
from trivium.data.sources import check_libraries, missing_paths
from trivium.errors import DataError, TriviumError
from trivium.files import write_json
from trivium.interrupts import exit_on_interrupt
from trivium.messages import padded, translated, translated_english
from trivium.progress import ProgressLine
from trivium.workflows.text_options import TextOptions

_LONG = 1_000_000  # bytes of a file


@opt.with_options(TextOptions)
def eval_(
    model: opt.Model,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(['perplexity', *stored('keys')['tasks']])}.",
            show_default="what the model was fine-tuned for, else perplexity",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    changes: opt.TaskSet = None,
    lm_eval: list[str] | None = None,
    tasks_folder: Path | None = None,
    shots: Annotated[int | None, typer.Option(min=0)] = None,
    quantize: opt.Quantize = None,
    out: Path | None = None,
    device: opt.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    **options: Any,
) -> None:
    """Loss, perplexity and bits per byte of text; the metrics of a fine-tuned model's task.

    An encoder predicts every token masked in turn, a forward pass each: --limit makes it shorter.
    With --quantize the results of the quantized model are shown beside those of the stored one.

    Args:
        files: Text, or labelled examples of the model's task.
        limit: Only the first documents or examples.
        lm_eval: A task of lm-evaluation-harness; repeatable.
        tasks_folder: YAML files of more such tasks.
        shots: --lm-eval: solved examples in the prompt.
        out: Also write all results, with the worst mistakes, as JSON.
        as_json: One JSON object per file.
    """
    if not files and not lm_eval:
        raise TriviumError("nothing to evaluate on: give a FILE, or a task with --lm-eval.")
    if not lm_eval and (tasks_folder is not None or shots is not None):
        raise TriviumError("--tasks-folder and --shots are for --lm-eval TASK: leave them out.")
    missing = missing_paths(files or ())
    if missing:
        raise DataError("\n".join(missing))
    check_libraries(files or ())
    with exit_on_interrupt():
        from trivium.evaluate.harness import find_tasks, run_tasks
        from trivium.workflows.evaluate import evaluate

    if lm_eval:  # before hours on the files
        find_tasks(lm_eval, folder=tasks_folder)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    line = ProgressLine()
    text = TextOptions(**options)

    def evaluate_all(quantize: Literal["int8"] | None) -> Iterator[tuple[str, dict[str, Any]]]:
        for file in files or ():
            is_long = Path(file).is_file() and Path(file).stat().st_size > _LONG
            part = translated("eval.long_file") if is_long and not limit else ""
            line.print_line(translated("eval.file", file=file, part=part))
            with line.running():
                metrics = evaluate(
                    model,
                    file,
                    task=task,
                    limit=limit,
                    text=text,
                    changes=changes or (),
                    device=device,
                    quantize=quantize,
                    progress=lambda count: line.update(
                        translated("eval.tokens_scored", count=count)
                    ),
                )
            yield file, _record(metrics)
        if lm_eval:
            lm = load(model, device=device, quantize=quantize)
            results = run_tasks(lm, lm_eval, folder=tasks_folder, shots=shots, limit=limit)
            yield from results.items()

    results: list[dict[str, Any]] = []
    quantized = evaluate_all(quantize) if quantize else None
    for file, values in evaluate_all(None):
        result: dict[str, Any] = {"file": file, **values}
        if quantized is not None:
            result[str(quantize)] = next(quantized)[1]
        results.append(result)
        show(result, _lines(result, quantize), as_json=as_json)
    if out is not None:
        write_json(out, results)


def _record(metrics: trivium.objectives.Metrics) -> dict[str, Any]:
    """All values, and what there is of examples, notes and mistakes."""
    details = metrics.to_dict()
    kept = ("num_examples", "notes", "mistakes", "calibration")
    return metrics.values | {name: details[name] for name in kept if details.get(name)}


def _lines(result: dict[str, Any], quantize: str | None) -> str:
    """One line per value; a quantized model's value and relative change beside it."""
    other = result.get(str(quantize), {})
    values = {name: v for name, v in result.items() if isinstance(v, int | float)}
    width = max(map(len, values), default=0)
    notes = map(translated_english, result.get("notes", ()))
    lines = [result["file"], *("  " + translated("run.note", note=note) for note in notes)]
    if quantize:
        stored = padded(translated("eval.stored"), 12, right=True)
        change = padded(translated("eval.change"), 8, right=True)
        lines.append(f"  {'':<{width}}  {stored}  {quantize:>12}  {change}")
    for name, value in values.items():
        line = f"  {name:<{width}}  {_number(value):>12}"
        if name in other:
            change = f"{other[name] / value - 1:>+8.2%}" if value else ""
            line += f"  {_number(other[name]):>12}  {change}"
        lines.append(line.rstrip())
    if "calibration" in result:
        from trivium.objectives.calibration import Calibration

        lines += (f"  {line}" for line in Calibration(**result["calibration"]).lines())
    return "\n".join(lines)


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"
