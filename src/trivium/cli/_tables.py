"""Tables on a terminal, whose names and numbers are never shortened."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer

from trivium.messages import display_width, padded, translated

_GAP = 2
_LEAST = 24  # columns of a terminal below which a text is shown in a block of its own
_NUMBER = re.compile(r"[-+~<>=≤≥≈]? ?\d|-?$")  # how a cell with a number begins, or without one


@dataclass
class Column:
    """A column: its heading, and whether its cells are texts that may be cut."""

    heading: str
    is_text: bool = False
    most: int | None = None


@dataclass
class TextTable:
    """A table whose first column has the names of the rows; columns of numbers end on the right."""

    columns: list[Column]
    rows: list[Sequence[str]] = field(default_factory=list)

    def add_column(self, heading: str) -> None:
        """Add a column of numbers or short words, which are never cut."""
        self.columns.append(Column(heading))

    def add_row(self, *cells: str) -> None:
        """Add a row; cells that are not given are empty."""
        self.rows.append([*cells, *[""] * (len(self.columns) - len(cells))])

    def lines(self, width: int | None) -> list[str]:
        """Return the lines of the table, none wider than `width` where its cells allow it.

        Columns that do not fit beside the others follow in further blocks, each with the names.
        Only texts are cut.
        """
        cells = list(zip([column.heading for column in self.columns], *self.rows))
        widths = [max(map(display_width, column)) for column in cells]
        right = [all(map(_NUMBER.match, column[1:])) for column in cells]
        for index, column in enumerate(self.columns):
            right[index] &= index > 0 and not column.is_text
            if column.is_text:
                widths[index] = min(widths[index], column.most or widths[index])
        blocks, used = [[0]], widths[0]
        for index, column in list(enumerate(self.columns))[1:]:
            needed = min(widths[index], _LEAST) if column.is_text else widths[index]
            if width is not None and len(blocks[-1]) > 1 and used + _GAP + needed > width:
                blocks.append([0])
                used = widths[0]
            room = needed if width is None else max(needed, width - used - _GAP)
            if column.is_text and width is not None:
                widths[index] = min(widths[index], room)
            blocks[-1].append(index)
            used += _GAP + widths[index]
        lines: list[str] = []
        for block in blocks:
            lines += [""] if lines else []
            for row in zip(*cells):
                shown = [self._cut(row[index], index, widths[index]) for index in block]
                aligned = [padded(one, widths[i], right=right[i]) for i, one in zip(block, shown)]
                lines.append((" " * _GAP).join(aligned).rstrip())
        return lines

    def _cut(self, text: str, index: int, width: int) -> str:
        text = " ".join(text.splitlines())
        if self.columns[index].is_text and display_width(text) > width:
            while display_width(text) > width - 1:
                text = text[:-1]
            text += "…"
        return text


def new_table(*columns: str) -> TextTable:
    """Return a table whose headings are the entries of `[heading]` with these names."""
    return TextTable([Column(translated(f"heading.{one}")) for one in columns])


def add_texts(table: TextTable, heading: str, width: int | None = None) -> None:
    """Add a column of texts, which are cut where they are too long."""
    table.columns.append(Column(translated(f"heading.{heading}"), is_text=True, most=width))


def print_table(table: TextTable) -> None:
    """Print a table as wide as the terminal; in a file or a pipe as wide as it is."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    typer.echo("\n".join(table.lines(width)))
