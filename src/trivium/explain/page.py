"""Pages of explanations and their parts: formulas, tables, grids, curves, token rows and trees.

A page contains its texts in English and in Chinese. It can be written as plain text, HTML or JSON.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from jinja2 import Environment, PackageLoader

from trivium.explain.svg import draw_curves, draw_grid
from trivium.explain.text_format import (
    draw_squares,
    find_numeric_columns,
    format_curves,
    format_grid,
    format_table,
    format_tokens,
    format_tree,
    underline,
    wrap_paragraph,
)
from trivium.files import write_file
from trivium.messages import Language, detect_language


class Bilingual(NamedTuple):
    """A text in English and in Chinese."""

    en: str
    zh: str


def get_text(identifier: str, /, **values: object) -> Bilingual:
    """Return a text of `texts.toml` in both languages, with its placeholders filled in.

    `identifier` consists of the table and the key, such as "norm.mean".
    """
    table, name = identifier.split(".")
    texts = _load_texts()[table][name]
    return Bilingual(*(text.format(**values) if values else text for text in texts))


@functools.cache
def _load_texts() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Load `texts.toml`: table -> key -> English and Chinese text."""
    path = Path(__file__).with_name("texts.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


Label: TypeAlias = Bilingual | str
"""A text on a page. A plain string, such as a token or a symbol, is not translated."""


def render(label: Any, language: Language) -> str:
    """Convert a label, number or list to text in a language.

    Numbers have four significant digits. A list becomes "(a, b, ...)".
    """
    if isinstance(label, Bilingual):
        return getattr(label, language)
    if isinstance(label, float):
        return f"{label + 0.0:.4g}"  # no -0
    if isinstance(label, list):
        return f"({', '.join(render(item, language) for item in label)})"
    return str(label)


@dataclass(frozen=True)
class Heading:
    """A section heading on a page."""

    words: Label

    def format_text(self, language: Language) -> str:
        """Format the heading as underlined text for a terminal."""
        return underline(render(self.words, language), "-")


@dataclass(frozen=True)
class Formula:
    """A formula of one or more lines, shown in a monospaced font."""

    lines: Label

    def format_text(self, language: Language) -> str:
        """Format the formula as indented text for a terminal."""
        return "\n".join(f"    {line}" for line in render(self.lines, language).splitlines())


@dataclass(frozen=True)
class Table:
    """A table with column names. The cells are labels or numbers."""

    columns: Sequence[Label]
    rows: Sequence[Sequence[Any]]
    caption: Label = ""

    def format_cells(self, language: Language) -> list[list[str]]:
        """Return all cells as text in a language, row by row.

        The first row contains the column names.
        """
        return [[render(cell, language) for cell in row] for row in (self.columns, *self.rows)]

    def find_numeric_columns(self, language: Language) -> list[bool]:
        """Return one bool per column: whether all of its cells are numbers."""
        return find_numeric_columns(self.format_cells(language))

    def format_text(self, language: Language) -> str:
        """Format the table as text for a terminal."""
        return format_table(render(self.caption, language), self.format_cells(language))


@dataclass(frozen=True)
class Grid:
    """A matrix of numbers, shown as cells that are shaded by absolute value.

    Args:
        values: the matrix [rows, columns].
        rows: the names of the rows; if empty, they are numbered from 1.
        columns: the names of the columns; if empty, they are numbered from 1.
        caption: the title above the grid.
        digits: whether to show the numbers. If False (for masks), the plain text shows a filled
            square for a positive number, an empty square for a negative number, and a dot for 0.
    """

    values: Sequence[Sequence[float]]
    rows: Sequence[Label | int] = ()
    columns: Sequence[Label | int] = ()
    caption: Label = ""
    digits: bool = True

    def format_text(self, language: Language) -> str:
        """Format the grid as text for a terminal, with numbers or squares as cells."""
        cells = self.format_numbers() if self.digits else draw_squares(self.values)
        return format_grid(render(self.caption, language), cells, *self.format_labels(language))

    def format_labels(self, language: Language) -> tuple[list[str], list[str]]:
        """Return the names of the rows and the names of the columns as text."""
        rows = self.rows or range(1, len(self.values) + 1)
        columns = self.columns or range(1, len(self.values[0]) + 1)
        return [render(row, language) for row in rows], [
            render(column, language) for column in columns
        ]

    def draw_svg(self, language: Language, title: Label = "") -> str:
        """Draw the grid as an SVG image. Without a caption, `title` is its accessible name."""
        cells = self.format_numbers() if self.digits else [[""] * len(row) for row in self.values]
        name = render(self.caption or title, language)
        return draw_grid(name, self.values, *self.format_labels(language), cells)

    def format_numbers(self) -> list[list[str]]:
        """Format the values as integers if all are integers, otherwise with two decimals."""
        whole = all(value == round(value) for row in self.values for value in row)
        decimals = 0 if whole else 2
        return [[f"{round(v, decimals) + 0.0:.{decimals}f}" for v in row] for row in self.values]


@dataclass(frozen=True)
class Curves:
    """A plot of several functions of x.

    Args:
        x: the x values.
        series: name of a function -> its value at each x.
        x_label: the label of the x axis.
        caption: the title above the plot.
    """

    x: Sequence[float]
    series: Mapping[Label, Sequence[float]]
    x_label: Label
    caption: Label = ""

    def format_series(self, language: Language) -> dict[str, Sequence[float]]:
        """Return a dict of function name -> values, with the names as text in a language."""
        return {render(name, language): values for name, values in self.series.items()}

    def format_text(self, language: Language) -> str:
        """Format the curves as a table of points, as text for a terminal."""
        caption, x_label = render(self.caption, language), render(self.x_label, language)
        return format_curves(caption, x_label, self.x, self.format_series(language))

    def draw_svg(self, language: Language, title: Label = "") -> str:
        """Draw the curves as an SVG image. Without a caption, `title` is its accessible name."""
        name = render(self.caption or title, language)
        return draw_curves(
            name, self.x, self.format_series(language), render(self.x_label, language)
        )


class Token(NamedTuple):
    """A token on a page, with a note below it and a tone that determines its colour."""

    text: str
    note: Label = ""
    tone: Literal["", "predicted", "changed", "special"] = ""


@dataclass(frozen=True)
class TokenRow:
    """A row of tokens with notes.

    A token with a label (one that counts in the loss) has the tone "changed" if the input contains
    a replacement of the original token, otherwise "predicted".
    """

    tokens: Sequence[Token]
    caption: Label = ""

    def format_cells(self, language: Language) -> list[tuple[str, str, str]]:
        """Return a tuple (text, note, tone) for each token, in a language."""
        return [(token.text, render(token.note, language), token.tone) for token in self.tokens]

    def format_text(self, language: Language) -> str:
        """Format the tokens as lines of text for a terminal, with their notes below."""
        return format_tokens(render(self.caption, language), self.format_cells(language))


@dataclass(frozen=True)
class Tree:
    """A tree diagram: a root label and the subtrees below it."""

    label: Label
    branches: Sequence[Tree] = ()

    def format_text(self, language: Language) -> str:
        """Format the tree as indented lines of text for a terminal."""
        return format_tree(self.to_tuples(language))

    def to_tuples(self, language: Language) -> tuple[str, list[Any]]:
        """Return the tree as nested tuples. Each tuple is a label and a list of subtrees."""
        return render(self.label, language), [
            branch.to_tuples(language) for branch in self.branches
        ]


Part: TypeAlias = Label | Heading | Formula | Table | Grid | Curves | TokenRow | Tree


@dataclass(frozen=True)
class Page:
    """An explanation of one topic.

    Args:
        title: the title of the page.
        parts: the texts, tables and figures to show.
        data: the values of the page for JSON output.
    """

    title: Label
    parts: Sequence[Part]
    data: dict[str, Any] = field(default_factory=dict[str, Any])

    def text(self, language: Language = "en") -> str:
        """Format the whole page as plain text for a terminal."""
        parts = [
            wrap_paragraph(render(part, language))
            if isinstance(part, str | Bilingual)
            else part.format_text(language)
            for part in self.parts
        ]
        return "\n\n".join([underline(render(self.title, language), "="), *parts])

    def html(self, language: Language = "en", *, whole: bool = True) -> str:
        """Return the page as HTML: a complete document if `whole` is true, otherwise a fragment.

        A complete document is self-contained: it loads no other files.
        """
        loader = PackageLoader("trivium", "explain")
        environment = Environment(loader=loader, autoescape=True, trim_blocks=True)
        environment.filters["render"] = lambda label: render(label, language)
        template = environment.get_template("page.html.j2")
        return template.render(
            page=self,
            parts=[(type(part).__name__, part) for part in self.parts],
            language=language,
            whole=whole,
        )

    def save(self, path: str | Path, language: Language = "en") -> None:
        """Write the page to an HTML file."""
        write_file(path, self.html(language))

    def _repr_html_(self) -> str:
        """Return the page as an HTML fragment. Jupyter notebooks call this method to display it."""
        return self.html(detect_language(), whole=False)
