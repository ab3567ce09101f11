"""Pages of explanations. Their parts are texts, formulas, tables, grids, curves, tokens and trees.

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
from trivium.messages import Language, terminal_language


class Bilingual(NamedTuple):
    """A text in English and in Chinese."""

    en: str
    zh: str


def get_text(identifier: str, /, **values: object) -> Bilingual:
    """Return the text of an identifier in `texts.toml`, such as "norm.mean", with fields filled."""
    table, name = identifier.split(".")
    texts = _load_texts()[table][name]
    return Bilingual(*(text.format(**values) if values else text for text in texts))


@functools.cache
def _load_texts() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return `texts.toml`: for each table, the English and the Chinese text of each name."""
    path = Path(__file__).with_name("texts.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


Label: TypeAlias = Bilingual | str
"""A label of a part. A plain string, such as a token or a symbol, is not translated."""


def render(label: Any, language: Language) -> str:
    """Return a label as text in a language.

    Numbers have four significant digits. A list is formatted as "(a, b, ...)".
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
    """The title of a section."""

    words: Label

    def text(self, language: Language) -> str:
        """Return this part as text for a terminal."""
        return underline(render(self.words, language), "-")


@dataclass(frozen=True)
class Formula:
    """A formula of one or more lines, shown in a monospaced font."""

    lines: Label

    def text(self, language: Language) -> str:
        """Return this part as text for a terminal."""
        return "\n".join(f"    {line}" for line in render(self.lines, language).splitlines())


@dataclass(frozen=True)
class Table:
    """A table with named columns, whose cells are labels and numbers."""

    columns: Sequence[Label]
    rows: Sequence[Sequence[Any]]
    caption: Label = ""

    def format_cells(self, language: Language) -> list[list[str]]:
        """Return all cells as text in a language. The first row contains the column names."""
        return [[render(cell, language) for cell in row] for row in (self.columns, *self.rows)]

    def find_numeric_columns(self, language: Language) -> list[bool]:
        """Return whether each column contains only numbers."""
        return find_numeric_columns(self.format_cells(language))

    def text(self, language: Language) -> str:
        """Return this part as text for a terminal."""
        return format_table(render(self.caption, language), self.format_cells(language))


@dataclass(frozen=True)
class Grid:
    """A matrix of numbers, shown as cells whose shade depends on the absolute value.

    Args:
        values: the matrix [rows, columns].
        rows: the names of the rows; empty: counted from 1.
        columns: the names of the columns; empty: counted from 1.
        caption: the title above the grid.
        digits: whether to show the numbers. If False, as for masks, the plain text contains a
            filled square for a positive number, an empty square for a negative number, and a dot
            for 0.
    """

    values: Sequence[Sequence[float]]
    rows: Sequence[Label | int] = ()
    columns: Sequence[Label | int] = ()
    caption: Label = ""
    digits: bool = True

    def text(self, language: Language) -> str:
        """Return this part as text for a terminal."""
        cells = self.format_numbers() if self.digits else draw_squares(self.values)
        return format_grid(render(self.caption, language), cells, *self.format_labels(language))

    def format_labels(self, language: Language) -> tuple[list[str], list[str]]:
        """Return the names of the rows and of the columns as text."""
        rows = self.rows or range(1, len(self.values) + 1)
        columns = self.columns or range(1, len(self.values[0]) + 1)
        return [render(row, language) for row in rows], [
            render(column, language) for column in columns
        ]

    def draw_svg(self, language: Language, title: Label = "") -> str:
        """Return the grid as an SVG image. If it has no caption, `title` is its accessible name."""
        cells = self.format_numbers() if self.digits else [[""] * len(row) for row in self.values]
        name = render(self.caption or title, language)
        return draw_grid(name, self.values, *self.format_labels(language), cells)

    def format_numbers(self) -> list[list[str]]:
        """Format the values: as integers if all are integers, otherwise with two decimals."""
        whole = all(value == round(value) for row in self.values for value in row)
        decimals = 0 if whole else 2
        return [[f"{round(v, decimals) + 0.0:.{decimals}f}" for v in row] for row in self.values]


@dataclass(frozen=True)
class Curves:
    """Functions of x. `series` contains the values at each x, by the name of the function."""

    x: Sequence[float]
    series: Mapping[Label, Sequence[float]]
    x_label: Label
    caption: Label = ""

    def format_series(self, language: Language) -> dict[str, Sequence[float]]:
        """Return the series, with their names as text in a language."""
        return {render(name, language): values for name, values in self.series.items()}

    def text(self, language: Language) -> str:
        """Return this part as text for a terminal."""
        caption, x_label = render(self.caption, language), render(self.x_label, language)
        return format_curves(caption, x_label, self.x, self.format_series(language))

    def draw_svg(self, language: Language, title: Label = "") -> str:
        """Return the curves as an SVG image. Without a caption, `title` is the accessible name."""
        name = render(self.caption or title, language)
        return draw_curves(
            name, self.x, self.format_series(language), render(self.x_label, language)
        )


class Token(NamedTuple):
    """A token with a note below it and a tone, which determines its colour."""

    text: str
    note: Label = ""
    tone: Literal["", "predicted", "changed", "special", "dim"] = ""


@dataclass(frozen=True)
class TokenRow:
    """A row of tokens with notes.

    Tokens with a label of the loss have the tone "predicted", or "changed" if the input contains a
    replacement of the original token.
    """

    tokens: Sequence[Token]
    caption: Label = ""

    def format_cells(self, language: Language) -> list[tuple[str, str, str]]:
        """Return the text, the note and the tone of each token in a language."""
        return [(token.text, render(token.note, language), token.tone) for token in self.tokens]

    def text(self, language: Language) -> str:
        """Return this part as text for a terminal."""
        return format_tokens(render(self.caption, language), self.format_cells(language))


@dataclass(frozen=True)
class Tree:
    """A tree: a label and the subtrees below it."""

    label: Label
    branches: Sequence[Tree] = ()

    def text(self, language: Language) -> str:
        """Return this part as text for a terminal."""
        return format_tree(self.to_tuples(language))

    def to_tuples(self, language: Language) -> tuple[str, list[Any]]:
        """Return the tree as nested tuples of a label and a list of subtrees."""
        return render(self.label, language), [
            branch.to_tuples(language) for branch in self.branches
        ]


Part: TypeAlias = Label | Heading | Formula | Table | Grid | Curves | TokenRow | Tree


@dataclass(frozen=True)
class Page:
    """An explanation: a title, the parts to show, and the plain values `data` for JSON."""

    title: Label
    parts: Sequence[Part]
    data: dict[str, Any] = field(default_factory=dict[str, Any])

    def text(self, language: Language = "en") -> str:
        """Return the page as text for a terminal."""
        parts = [
            wrap_paragraph(render(part, language))
            if isinstance(part, str | Bilingual)
            else part.text(language)
            for part in self.parts
        ]
        return "\n\n".join([underline(render(self.title, language), "="), *parts])

    def html(self, language: Language = "en", *, whole: bool = True) -> str:
        """Return the page as a self-contained HTML document, or an HTML fragment if not `whole`."""
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
        """Write the page as an HTML file."""
        write_file(path, self.html(language))

    def _repr_html_(self) -> str:
        """Return the HTML fragment that a Jupyter notebook shows."""
        return self.html(terminal_language(), whole=False)
