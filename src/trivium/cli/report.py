"""`trivium report`: summarise a run, or compare several, as one HTML file.

Examples:

  trivium report runs/mine --open

  trivium report runs/bert runs/gpt --out comparison.html
"""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from trivium.messages import translated
from trivium.report import text_report, write_comparison, write_report

_COMPARISON = Path("comparison.html")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    out: Annotated[
        Path | None, typer.Option(show_default=f"RUN/report.html; of several runs {_COMPARISON}")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open")] = False,
) -> None:
    """Summarise a run, also one that is still training, or compare several.

    The report is one HTML file that needs no network.

    Args:
        runs: Run folders.
        out: The HTML file to write.
        open_page: Open it in the browser.
    """
    if len(runs) == 1:
        path = write_report(runs[0], out)
    else:
        path = write_comparison(runs, out or _COMPARISON)
    typer.echo(text_report(runs))
    typer.echo(f"{translated('label.report')}  {path}")
    if open_page:
        webbrowser.open(path.resolve().as_uri())
