"""`trivium report`: summarise a run, or compare several runs, in one HTML file.

Examples:

  trivium report runs/mine --open

  trivium report runs/bert runs/gpt --out comparison.html

  trivium report runs/sweep/* --csv > sweep.csv
"""

from __future__ import annotations

import csv
import errno
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import UsageError
from trivium.cli._shared import print_json, shorten_count
from trivium.cli._tables import make_table, print_table
from trivium.errors import DataError
from trivium.messages import translated
from trivium.progress import format_duration
from trivium.report import RunFiles, format_report, read_run, write_comparison, write_report
from trivium.report.common_table import find_different_settings, make_run_table

_COMPARISON = Path("comparison.html")
# If more settings differ, the printed table omits them because it would be too wide.
_SHOWN_SETTINGS = 3
# Columns of the printed table: columns that are omitted if all runs have the same value; results.
_IDENTITY, _RESULTS = ("model", "objective", "parameters", "step"), ("loss", "bits_per_byte")
_SHOWN_AS_IDENTITY = ("model.preset", "model.init_from", "objective.kind")  # keys of recipes


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    out: Annotated[
        Path | None, typer.Option(show_default=f"RUN/report.html; for several runs, {_COMPARISON}")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    as_csv: Annotated[bool, typer.Option("--csv")] = False,
) -> None:
    """Summarise a run, which may still be training, or compare several runs.

    The report is one HTML file that needs no network access. For several runs, the command also
    prints a table of their validation losses and metrics and the settings in which they differ.

    Args:
        runs: The run folders.
        out: The HTML file to write.
        open_page: Open the HTML file in the browser.
        as_json: Print one JSON object per run; no HTML file is written.
        as_csv: Print the table as CSV; no HTML file is written.
    """
    if as_json or as_csv:
        if sum(map(bool, (as_json, as_csv, out, open_page))) > 1:
            raise UsageError("give either --json or --csv, without --out and --open.")
        _print_json_or_csv(make_run_table([read_run(run) for run in runs]), as_json=as_json)
        return
    path = out or (runs[0] / "report.html" if len(runs) == 1 else _COMPARISON)
    try:
        path = write_report(runs[0], path) if len(runs) == 1 else write_comparison(runs, path)
    except OSError as error:
        if out is not None or error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise DataError(
            f"{path} cannot be written ({error.strerror}): choose another file with --out FILE."
        ) from error
    if len(runs) > 1:
        _print_comparison([read_run(run) for run in runs])
    typer.echo(format_report(runs))
    typer.echo(f"{translated('label.report')}  {path}")
    if open_page:
        webbrowser.open(path.resolve().as_uri())


def _print_json_or_csv(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print the rows of the comparison table as CSV, or with `as_json` as JSON lines."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_comparison(runs: Sequence[RunFiles]) -> None:
    """Print a table that compares runs. Settings that are equal in all runs are left out."""
    rows = make_run_table(runs)
    settings = [key for key in find_different_settings(runs) if key not in _SHOWN_AS_IDENTITY]
    keys = [key for key in _IDENTITY if len({row.get(key) for row in rows}) > 1]
    keys += settings if len(settings) <= _SHOWN_SETTINGS else []
    results = dict.fromkeys([*_RESULTS, *(run.metric for run in runs)])
    keys += [key for key in results if key in rows[0]] + ["seconds"]
    table = make_table("run")
    for key in keys:
        known = key in (*_IDENTITY, *_RESULTS, "seconds")
        table.add_column(translated(f"heading.{key}") if known else key)
    for row in rows:
        table.add_row(str(row["run"]), *(_format_cell(key, row.get(key)) for key in keys))
    print_table(table)
    typer.echo()


def _format_cell(key: str, value: Any) -> str:
    """Format a value for the column `key` of the printed table."""
    if value is None:
        return "-"
    if key in ("parameters", "seconds"):
        return format_duration(value) if key == "seconds" else shorten_count(value)
    if isinstance(value, float):
        return f"{value:g}" if "." in key else f"{value:.4f}"
    return f"{value:,}" if key == "step" else str(value)
