"""`trivium check`: find problems in data before training on it.

Examples:

  trivium check my_texts/

  trivium check my_texts/ --tokenizer tokenizer.json --strict

  trivium check shards/

  trivium check reviews.csv --task classification --set objective.label_field=stars --json
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.cli import load_json
from trivium.cli._shared import parse_validation, print_json
from trivium.cli._tables import add_text_column, make_table, print_table
from trivium.data.checks import Finding, check_shards, check_texts
from trivium.data.documents import ReadOptions, describe_text_columns
from trivium.data.records import RECORD_SUFFIXES, ReadReport
from trivium.data.shards import Shards, are_shards
from trivium.data.sources import check_libraries, file_format
from trivium.data.splitting import CorpusOptions
from trivium.errors import DataError, RecipeError
from trivium.interrupts import exit_on_interrupt
from trivium.messages import padded, translate_english, translated
from trivium.progress import labelled
from trivium.text import Tokenizer

_TASKS = ", ".join(load_json("keys")["tasks"])
_WIDTH = 60  # characters of a sample in the table


@opt.with_options(ReadOptions)
def check(
    data: list[str],
    task: Annotated[
        str | None, typer.Option(help=f"Check labelled examples for this task: {_TASKS}.")
    ] = None,
    validation: Annotated[list[str] | None, typer.Option(show_default="0.1")] = None,
    tokenizer: Path | None = None,
    changes: opt.TaskSet = None,
    strict: bool = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    **data_options: Any,
) -> None:
    """Count common problems in data: duplicates, wrong encoding, unused labels and more.

    The data is split into training and validation data like in a training run, so that overlap
    between the two is found.

    Args:
        data: Texts, labelled examples (with --task), or a folder of shards.
        validation: Validation files, or the fraction of the data to use for validation.
        tokenizer: A tokenizer; also count unknown and unused tokens.
        strict: Exit with code 1 if a problem is found.
        as_json: Print the results as JSON.
    """
    with exit_on_interrupt():
        from trivium.objectives import task_kinds
        from trivium.objectives.example_checks import check_examples
        from trivium.workflows.evaluate import check_task, make_objective, split_data_overrides

    loaded = None if tokenizer is None else Tokenizer.load(tokenizer)
    fraction_or_files = parse_validation(validation or ["0.1"])
    check_libraries([*data, *(fraction_or_files if isinstance(fraction_or_files, tuple) else ())])
    keys, read_keys = split_data_overrides(changes or ())
    read_keys.pop("bad_records", None)  # they are always counted
    options = CorpusOptions(validation=fraction_or_files, **{**data_options, **read_keys})
    shards = are_shards(data)
    report, columns = ReadReport(), []
    if task is not None:
        check_task(task, task_kinds())
        if (options.separator, options.text_field) != ("blank", "text"):
            raise _make_text_options_error(task)
        objective = make_objective(task, {}, keys)
        findings = check_examples(
            objective,
            data,
            fraction_or_files,
            encoding=options.encoding,
            errors=options.errors,
            tokenizer=loaded,
            report=report,
        )
    elif keys:
        raise RecipeError("--set changes the objective of a task: name the task with --task.")
    elif shards and loaded is not None:
        raise DataError("shards contain their own tokenizer: leave out --tokenizer.")
    elif shards:
        opened = Shards.open(data[0])
        findings = check_shards(opened, Tokenizer.load(opened.tokenizer_path))
    else:
        findings = _check_texts(data, options, loaded)
        columns = describe_text_columns(data, options)
    columns = [*columns, *report.lines]
    wrong = [finding for finding in findings if finding.wrong]
    if as_json:
        rows = [
            dataclasses.asdict(finding) | {"share": finding.share, "wrong": finding.wrong}
            for finding in findings
        ]
        print_json({"wrong": len(wrong), "findings": rows, "columns": columns})
    else:
        for index, line in enumerate(columns):
            typer.echo(labelled("" if index else "columns", line))
        _print_findings(findings)
    raise typer.Exit(int(strict and bool(wrong)))


def _check_texts(
    data: list[str], options: CorpusOptions, tokenizer: Tokenizer | None
) -> list[Finding]:
    """Check raw texts for problems. Returns the findings.

    If reading fails and a file has a format for records (such as CSV), the error message suggests
    `--task`.
    """
    try:
        return check_texts(data, options, tokenizer)
    except DataError as error:
        if any(file_format(path) in RECORD_SUFFIXES and Path(path).exists() for path in data):
            raise DataError(
                f"{error}\nAre these labelled examples or pairs? Add --task: {_TASKS}."
            ) from error
        raise


def _make_text_options_error(task: str) -> RecipeError:
    """Return the error for using `--separator` or `--text-field` together with `--task`.

    Both options apply only to raw texts. The message names the recipe keys that select the columns
    of labelled examples.
    """
    from trivium.objectives import Objective

    fields = [name for name in Objective.kinds[task].model_fields if name.endswith("_field")]
    return RecipeError(
        "--separator and --text-field are for texts; columns of labelled examples are named "
        f"by --set objective.KEY=NAME, where KEY is {', '.join(fields)}."
    )


def _print_findings(findings: list[Finding]) -> None:
    """Print the table of findings, the advice for each problem, and the number of problems."""
    table = make_table("check", "found", "total", "share")
    table.add_column("")
    add_text_column(table, "such_as", max_width=_WIDTH)
    for one in findings:
        mark = translated("check.wrong") if one.wrong else ""
        cells = (f"{one.count:,}", f"{one.total:,}", f"{one.share:.1%}", mark)
        table.add_row(translate_english(one.check), *cells, *one.samples[:1])
        for sample in one.samples[1:]:
            table.add_row("", "", "", "", "", sample)
    print_table(table)
    for one in findings:
        if one.wrong or (one.count and one.limit is None and one.advice):
            mark = padded(translated("check.wrong" if one.wrong else "check.note"), 7)
            check, advice = translate_english(one.check), translate_english(one.advice)
            typer.echo(f"{mark}{check}{translated('join.colon')}{advice}")
        for sample in one.samples if one.wrong else ():
            if len(sample) > _WIDTH:
                typer.echo(f"       {sample}")
    wrong = sum(one.wrong for one in findings)
    if not wrong:
        typer.echo(translated("check.nothing_wrong"))
        return
    typer.echo(translated("check.result", wrong=wrong, total=len(findings)))
