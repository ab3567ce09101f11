"""Tables for the terminal. Only text columns are truncated; names and numbers never are."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer

from trivium.messages import display_width, padded, translated

_GAP = 2
_MIN_TEXT_WIDTH = 24  # a column of texts with less space moves to the next block of columns
# The start of a numeric cell; "-" and "" are missing numbers.
_NUMBER = re.compile(r"[-+~<>=≤≥≈]? ?\d|-?$")


@dataclass
class Column:
    """A column of a terminal table.

    Args:
        heading: the column heading.
        is_text: whether the cells are free text. Only text cells may be truncated.
        max_width: the maximum width of a text column; None if there is no limit.
    """

    heading: str
    is_text: bool = False
    max_width: int | None = None


@dataclass
class TextTable:
    """A terminal table. The first column contains the row names; numbers are right-aligned."""

    columns: list[Column]
    rows: list[Sequence[str]] = field(default_factory=list)

    def add_column(self, heading: str) -> None:
        """Add a column of numbers or short words, which are never truncated."""
        self.columns.append(Column(heading))

    def add_row(self, *cells: str) -> None:
        """Append a row of cells.

        If there are fewer cells than columns, the last columns are left empty.
        """
        self.rows.append([*cells, *[""] * (len(self.columns) - len(cells))])

    def format_lines(self, max_width: int | None) -> list[str]:
        """Format the table as lines of text that are at most `max_width` wide. None means no limit.

        Columns that do not fit are printed in further blocks below. Each block repeats the first
        column. If the numbers and names in a block are too wide, its lines exceed `max_width`.
        """
        cells = list(zip([column.heading for column in self.columns], *self.rows))
        widths = [max(map(display_width, column)) for column in cells]
        right = [all(map(_NUMBER.match, column[1:])) for column in cells]
        for index, column in enumerate(self.columns):
            right[index] &= index > 0 and not column.is_text
            if column.is_text:
                widths[index] = min(widths[index], column.max_width or widths[index])
        blocks, used = [[0]], widths[0]
        for index, column in list(enumerate(self.columns))[1:]:
            needed = min(widths[index], _MIN_TEXT_WIDTH) if column.is_text else widths[index]
            if max_width is not None and len(blocks[-1]) > 1 and used + _GAP + needed > max_width:
                blocks.append([0])
                used = widths[0]
            room = needed if max_width is None else max(needed, max_width - used - _GAP)
            if column.is_text and max_width is not None:
                widths[index] = min(widths[index], room)
            blocks[-1].append(index)
            used += _GAP + widths[index]
        lines: list[str] = []
        for block in blocks:
            lines += [""] if lines else []
            for row in zip(*cells):
                shown = [self._truncate_cell(row[index], index, widths[index]) for index in block]
                aligned = [padded(cell, widths[i], right=right[i]) for i, cell in zip(block, shown)]
                lines.append((" " * _GAP).join(aligned).rstrip())
        return lines

    def _truncate_cell(self, text: str, index: int, width: int) -> str:
        """Return the text of a cell as one line, truncated to `width` in a text column.

        `index` is the index of the column.
        """
        text = " ".join(text.splitlines())
        if self.columns[index].is_text and display_width(text) > width:
            while display_width(text) > width - 1:
                text = text[:-1]
            text += "…"
        return text


def make_table(*heading_keys: str) -> TextTable:
    """Create an empty table. The column headings are the texts `heading.KEY` in `texts.toml`."""
    return TextTable([Column(translated(f"heading.{name}")) for name in heading_keys])


def add_text_column(table: TextTable, heading_key: str, max_width: int | None = None) -> None:
    """Add a column of text that is truncated to `max_width` and to the width of the terminal.

    `heading_key` is the key of the column heading in `texts.toml`.
    """
    table.columns.append(
        Column(translated(f"heading.{heading_key}"), is_text=True, max_width=max_width)
    )


def print_table(table: TextTable) -> None:
    """Print a table. On a terminal, limit it to the terminal's width."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    typer.echo("\n".join(table.format_lines(width)))
