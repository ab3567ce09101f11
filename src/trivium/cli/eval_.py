"""`trivium eval`: measure perplexity, task metrics or lm-evaluation-harness tasks.

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
from trivium.cli import load_json
from trivium.cli._shared import load, print_result
from trivium.data.sources import check_libraries, describe_missing_paths
from trivium.errors import DataError, TriviumError
from trivium.files import write_json
from trivium.interrupts import exit_on_interrupt
from trivium.messages import padded, translate_english, translated
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
            help=f"What to measure: {', '.join(['perplexity', *load_json('keys')['tasks']])}.",
            show_default="the task of the fine-tuned model, otherwise perplexity",
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
    """Evaluate a model on files: perplexity of text, or the metrics of the model's task.

    Perplexity also reports the loss and bits per byte. An encoder masks and predicts each token in
    a separate forward pass, which is slow: use --limit. With --quantize, the results of the
    quantized model are shown next to those of the stored model.

    Args:
        files: Text, or labelled examples of the model's task.
        limit: Maximum number of documents or examples to evaluate on: the first ones of each file.
        lm_eval: A task of lm-evaluation-harness. Repeatable.
        tasks_folder: A folder with YAML files that define further tasks for --lm-eval.
        shots: Number of few-shot examples in the prompt, for --lm-eval.
        out: Also write all results and the worst mistakes to this JSON file.
        as_json: Print one JSON object per file.
    """
    if not files and not lm_eval:
        raise TriviumError("nothing to evaluate on: give a FILE, or a task with --lm-eval.")
    if not lm_eval and (tasks_folder is not None or shots is not None):
        raise TriviumError("--tasks-folder and --shots are for --lm-eval TASK: leave them out.")
    missing = describe_missing_paths(files or ())
    if missing:
        raise DataError("\n".join(missing))
    check_libraries(files or ())
    with exit_on_interrupt():
        from trivium.evaluate.harness import load_task_manager, run_tasks
        from trivium.workflows.evaluate import evaluate

    if lm_eval:  # report unknown tasks before the files are evaluated, which may take hours
        load_task_manager(lm_eval, folder=tasks_folder)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    log = ProgressLine()
    text = TextOptions(**options)

    def evaluate_files(
        quantize: Literal["int8", "nf4"] | None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Evaluate the model, optionally quantized. Yields each file or task with its metrics."""
        for file in files or ():
            is_long = Path(file).is_file() and Path(file).stat().st_size > _LONG
            part = translated("eval.long_file") if is_long and not limit else ""
            log.print_line(translated("eval.file", file=file, part=part))
            with log.running():
                metrics = evaluate(
                    model,
                    file,
                    task=task,
                    limit=limit,
                    text=text,
                    changes=changes or (),
                    device=device,
                    quantize=quantize,
                    progress=lambda count: log.update(
                        translated("eval.tokens_scored", count=count)
                    ),
                )
            yield file, _metrics_to_dict(metrics)
        if lm_eval:
            lm = load(model, device=device, quantize=quantize)
            results = run_tasks(lm, lm_eval, folder=tasks_folder, shots=shots, limit=limit)
            yield from results.items()

    results: list[dict[str, Any]] = []
    quantized = evaluate_files(quantize) if quantize else None
    for file, values in evaluate_files(None):
        result: dict[str, Any] = {"file": file, **values}
        if quantized is not None:
            result[str(quantize)] = next(quantized)[1]
        results.append(result)
        print_result(result, _format_result(result, quantize), as_json=as_json)
    if out is not None:
        write_json(out, results)


def _metrics_to_dict(metrics: trivium.objectives.Metrics) -> dict[str, Any]:
    """Convert metrics to a dict for output.

    If available, the number of examples, the notes, the mistakes and the calibration are included.
    """
    details = metrics.to_dict()
    kept = ("num_examples", "notes", "mistakes", "calibration")
    return metrics.values | {name: details[name] for name in kept if details.get(name)}


def _format_result(result: dict[str, Any], quantize: str | None) -> str:
    """Return the metrics of a file as text, one metric per line.

    If `quantize` is given, each line also contains the value of the quantized model and the
    relative change.
    """
    other = result.get(str(quantize), {})
    values = {name: v for name, v in result.items() if isinstance(v, int | float)}
    width = max(map(len, values), default=0)
    notes = map(translate_english, result.get("notes", ()))
    lines = [result["file"], *("  " + translated("run.note", note=note) for note in notes)]
    if quantize:
        stored = padded(translated("eval.stored"), 12, right=True)
        change = padded(translated("eval.change"), 8, right=True)
        lines.append(f"  {'':<{width}}  {stored}  {quantize:>12}  {change}")
    for name, value in values.items():
        line = f"  {name:<{width}}  {_format_number(value):>12}"
        if name in other:
            change = f"{other[name] / value - 1:>+8.2%}" if value else ""
            line += f"  {_format_number(other[name]):>12}  {change}"
        lines.append(line.rstrip())
    if "calibration" in result:
        from trivium.objectives.calibration import Calibration

        lines += (f"  {line}" for line in Calibration(**result["calibration"]).render())
    return "\n".join(lines)


def _format_number(value: float) -> str:
    """Format an integer with thousands separators, or any other number with four decimals."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"
