"""Formats page parts as plain text. Chinese characters are two terminal columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.messages import display_width, padded

_WIDTH, _CURVE_ROWS = 79, 9


def underline(title: str, character: str) -> str:
    """Return a title with a line of `character` below it."""
    return f"{title}\n{character * display_width(title)}"


def wrap_paragraph(text: str) -> str:
    """Wrap a paragraph at 79 columns.

    Chinese text is not wrapped, because the terminal wraps it.
    """
    return text if display_width(text) > len(text) else textwrap.fill(text, _WIDTH)


def find_numeric_columns(cells: Sequence[Sequence[str]]) -> list[bool]:
    """Return one bool per column: whether all of its cells are numbers.

    The header row is ignored.
    """
    return [not "".join(column[1:]).strip("-+.0123456789e,% ") for column in zip(*cells)]


def format_table(caption: str, cells: Sequence[Sequence[str]]) -> str:
    """Format a table as text with aligned columns. Columns of numbers are right-aligned.

    The first row of `cells` contains the column names.
    """
    widths = [max(map(display_width, column)) for column in zip(*cells)]
    numeric = find_numeric_columns(cells)
    lines = [
        "  ".join(map(lambda cell, width, right: padded(cell, width, right=right), *parts)).rstrip()
        for parts in ((row, widths, numeric) for row in cells)
    ]
    return "\n".join(([caption] if caption else []) + ["    " + line for line in lines])


def format_grid(
    caption: str,
    cells: Sequence[Sequence[str]],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
) -> str:
    """Format a matrix as a text table with row and column names."""
    return format_table(
        caption, [["", *column_labels], *([row, *line] for row, line in zip(row_labels, cells))]
    )


def draw_squares(values: Sequence[Sequence[float]]) -> list[list[str]]:
    """Convert each number to a symbol.

    The symbol is a filled square (positive), an empty square (negative) or a dot (0).
    """

    def to_symbol(value: float) -> str:
        """Return the symbol of a number."""
        return "\u25a0" if value > 0 else "\u25a1" if value < 0 else "\u00b7"

    return [list(map(to_symbol, row)) for row in values]


def format_curves(
    caption: str, x_label: str, x: Sequence[float], series: Mapping[str, Sequence[float]]
) -> str:
    """Format curves as a table of their values at up to nine points."""
    step = max(1, -(-(len(x) - 1) // (_CURVE_ROWS - 1)))
    lines = list(zip(x, *series.values()))[::step]
    cells = [[x_label, *series], *([f"{value:.4g}" for value in line] for line in lines)]
    return format_table(caption, cells)


def format_tokens(caption: str, cells: Sequence[tuple[str, str, str]]) -> str:
    """Format tokens as wrapped lines of text, with their notes below.

    Each cell contains the token, its note and its tone. Tokens with the tone "predicted" are put in
    brackets, and tokens with the tone "changed" are marked with "*".
    """
    lines = [caption] if caption else []
    above, below = "    ", "    "
    for token, note, tone in cells:
        token = f"[{token}]" if tone == "predicted" else f"*{token}" if tone == "changed" else token
        width = max(display_width(token), display_width(note)) + 1
        if display_width(above) + width > _WIDTH:
            lines += [above.rstrip(), below.rstrip()]
            above, below = "    ", "    "
        above, below = above + padded(token, width), below + padded(note, width)
    return "\n".join(line for line in [*lines, above.rstrip(), below.rstrip()] if line)


def format_tree(tree: tuple[str, list[Any]], indent: str = "    ") -> str:
    """Format a tree as text, one line per node. Subtrees are indented below their parent.

    `tree` is a tuple of a label and a list of subtrees.
    """
    label, branches = tree
    return "\n".join([indent + label, *(format_tree(branch, indent + "  ") for branch in branches)])
