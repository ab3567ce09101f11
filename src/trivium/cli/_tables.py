"""Tables on a terminal; apart from `_shared`, for importing rich takes a while."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.table import Table

from trivium.messages import translated

_WIDE = 200  # characters of a line that no terminal cuts


def new_table(first: str, *numbers: str, wrap: bool = False) -> Table:
    """Return a table of one column of names and several of numbers, which end on the right.

    `[heading]` has the headings by the names that are given.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column(translated(f"heading.{first}"), no_wrap=True)
    for heading in numbers:
        table.add_column(translated(f"heading.{heading}"), justify="right", no_wrap=not wrap)
    return table


def add_texts(table: Table, heading: str, width: int | None = None) -> None:
    """Add a column of texts, which are cut where they are too long."""
    heading = translated(f"heading.{heading}")
    table.add_column(heading, overflow="ellipsis", no_wrap=True, max_width=width)


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal; in a file or a pipe as wide as it is."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE, markup=False)
    with console.capture() as capture:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))
