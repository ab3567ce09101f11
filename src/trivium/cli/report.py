"""`trivium report`: look at one run, or at several side by side."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from trivium.report.comparison import run_names, write_comparison
from trivium.report.html import write_report
from trivium.report.ranking import rankings, text_ranking
from trivium.report.run_files import read_run
from trivium.report.summary import summarize, text_summary

app = typer.Typer(add_completion=False)

_COMPARISON = Path("comparison.html")
_EPILOG = """Examples:

  trivium report runs/mine --open

  trivium report runs/bert runs/gpt --out comparison.html
"""


@app.command(epilog=_EPILOG)
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The HTML file to write.",
            show_default=f"RUN/report.html; for several runs {_COMPARISON}",
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Sum up a run and write its report: one HTML file that needs nothing else.

    Several runs are compared on one page. A run that is still going can be looked at too.
    """
    found = [read_run(folder) for folder in runs]
    summaries = [summarize(run) for run in found]
    if len(runs) == 1:
        path = write_report(runs[0], out)
    else:
        path = write_comparison(runs, out or _COMPARISON)
    ranked = rankings(found, run_names(found))
    texts = [*map(text_summary, summaries), *map(text_ranking, ranked)]
    typer.echo("\n\n".join(texts))
    typer.echo(f"report          {path}")
    if open_page:
        webbrowser.open(path.resolve().as_uri())
