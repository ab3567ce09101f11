"""What an explanation shows: text, formulas, tables, grids, curves, tokens, trees.

A page knows its words in English and in Chinese, and is written as text, HTML or JSON.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from jinja2 import Environment, PackageLoader

from trivium.explain.svg import curves_svg, grid_svg
from trivium.explain.text_format import (
    curves_text,
    grid_text,
    numeric_columns,
    paragraph,
    squares,
    table_text,
    tokens_text,
    tree_text,
    underlined,
)
from trivium.files import write_file
from trivium.messages import Language, terminal_language


class Bilingual(NamedTuple):
    """The same in English and Chinese."""

    en: str
    zh: str


def bilingual(identifier: str, /, **values: object) -> Bilingual:
    """Return a text of `texts.toml`, such as "norm.mean", with values in its {fields}."""
    table, name = identifier.split(".")
    texts = _texts()[table][name]
    return Bilingual(*(text.format(**values) if values else text for text in texts))


@functools.cache
def _texts() -> Mapping[str, Mapping[str, Sequence[str]]]:
    path = Path(__file__).with_name("texts.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


Label: TypeAlias = Bilingual | str
"""What needs no translation, a token or a symbol, is a string."""


def say(label: Any, language: Language) -> str:
    """A label in a language; of numbers the first four digits that count, of a list (a, b, ...)."""
    if isinstance(label, Bilingual):
        return getattr(label, language)
    if isinstance(label, float):
        return f"{label + 0.0:.4g}"  # no -0
    if isinstance(label, list):
        return f"({', '.join(say(one, language) for one in label)})"
    return str(label)


@dataclass(frozen=True)
class Heading:
    """A section's title."""

    words: Label

    def text(self, language: Language) -> str:
        """For a terminal."""
        return underlined(say(self.words, language), "-")


@dataclass(frozen=True)
class Formula:
    """Lines of a formula or of symbols, in a font of one width."""

    lines: Label

    def text(self, language: Language) -> str:
        """For a terminal."""
        return "\n".join(f"    {line}" for line in say(self.lines, language).splitlines())


@dataclass(frozen=True)
class Table:
    """Rows of labels and numbers under the names of the columns."""

    columns: Sequence[Label]
    rows: Sequence[Sequence[Any]]
    caption: Label = ""

    def cells(self, language: Language) -> list[list[str]]:
        """All cells in a language, the columns' names first."""
        return [[say(cell, language) for cell in row] for row in (self.columns, *self.rows)]

    def numeric(self, language: Language) -> list[bool]:
        """Which columns have numbers."""
        return numeric_columns(self.cells(language))

    def text(self, language: Language) -> str:
        """For a terminal."""
        return table_text(say(self.caption, language), self.cells(language))


@dataclass(frozen=True)
class Grid:
    """A matrix [rows, columns] of numbers, shaded by size from 0 to the largest.

    Rows and columns without names are counted from 1.
    With `digits` numbers are shown; else, as for masks, the text has a filled square, an empty one
    where a number is negative, and a dot where it is 0.
    """

    values: Sequence[Sequence[float]]
    rows: Sequence[Label | int] = ()
    columns: Sequence[Label | int] = ()
    caption: Label = ""
    digits: bool = True

    def text(self, language: Language) -> str:
        """For a terminal."""
        cells = self.numbers() if self.digits else squares(self.values)
        return grid_text(say(self.caption, language), cells, *self.labels(language))

    def labels(self, language: Language) -> tuple[list[str], list[str]]:
        """The names of rows and columns."""
        rows = self.rows or range(1, len(self.values) + 1)
        columns = self.columns or range(1, len(self.values[0]) + 1)
        return [say(one, language) for one in rows], [say(one, language) for one in columns]

    def svg(self, language: Language, title: Label = "") -> str:
        """The grid as a picture; `title` is its name if it has no caption."""
        cells = self.numbers() if self.digits else [[""] * len(row) for row in self.values]
        name = say(self.caption or title, language)
        return grid_svg(name, self.values, *self.labels(language), cells)

    def numbers(self) -> list[list[str]]:
        """The values as text, with two decimals unless all are whole."""
        whole = all(value == round(value) for row in self.values for value in row)
        decimals = 0 if whole else 2
        return [[f"{round(v, decimals) + 0.0:.{decimals}f}" for v in row] for row in self.values]


@dataclass(frozen=True)
class Curves:
    """Functions of x: name -> a value at each x."""

    x: Sequence[float]
    series: Mapping[Label, Sequence[float]]
    x_label: Label
    caption: Label = ""

    def named(self, language: Language) -> dict[str, Sequence[float]]:
        """The series by their names in a language."""
        return {say(name, language): values for name, values in self.series.items()}

    def text(self, language: Language) -> str:
        """For a terminal."""
        caption, x_label = say(self.caption, language), say(self.x_label, language)
        return curves_text(caption, x_label, self.x, self.named(language))

    def svg(self, language: Language, title: Label = "") -> str:
        """The curves as a picture; `title` is its name if it has no caption."""
        name = say(self.caption or title, language)
        return curves_svg(name, self.x, self.named(language), say(self.x_label, language))


class Token(NamedTuple):
    """A token, what is written under it, and its colour."""

    text: str
    note: Label = ""
    tone: Literal["", "predicted", "changed", "special", "dim"] = ""


@dataclass(frozen=True)
class TokenRow:
    """A row of tokens with notes: what a loss predicts is `predicted`, what replaces a token of the
    text `changed`."""

    tokens: Sequence[Token]
    caption: Label = ""

    def cells(self, language: Language) -> list[tuple[str, str, str]]:
        """Each token with its note and tone."""
        return [(one.text, say(one.note, language), one.tone) for one in self.tokens]

    def text(self, language: Language) -> str:
        """For a terminal."""
        return tokens_text(say(self.caption, language), self.cells(language))


@dataclass(frozen=True)
class Tree:
    """A label with branches."""

    label: Label
    branches: Sequence[Tree] = ()

    def text(self, language: Language) -> str:
        """For a terminal."""
        return tree_text(self.shape(language))

    def shape(self, language: Language) -> tuple[str, list[Any]]:
        """The label and the shapes of the branches."""
        return say(self.label, language), [one.shape(language) for one in self.branches]


Part: TypeAlias = Label | Heading | Formula | Table | Grid | Curves | TokenRow | Tree


@dataclass(frozen=True)
class Page:
    """An explanation: its parts to show, and the same as plain values in `data`, for JSON."""

    title: Label
    parts: Sequence[Part]
    data: dict[str, Any] = field(default_factory=dict[str, Any])

    def text(self, language: Language = "en") -> str:
        """The page for a terminal."""
        parts = [
            paragraph(say(part, language))
            if isinstance(part, str | Bilingual)
            else part.text(language)
            for part in self.parts
        ]
        return "\n\n".join([underlined(say(self.title, language), "="), *parts])

    def html(self, language: Language = "en", *, whole: bool = True) -> str:
        """The page as one file without links, or as a fragment for a page that has others."""
        loader = PackageLoader("trivium", "explain")
        environment = Environment(loader=loader, autoescape=True, trim_blocks=True)
        environment.filters["say"] = lambda label: say(label, language)
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
        """What a notebook shows."""
        return self.html(terminal_language(), whole=False)
