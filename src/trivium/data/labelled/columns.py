"""Sentences in columns: a word a line, blank lines between sentences, as in the CoNLL tasks."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

from trivium.data.labelled.files import numbered_lines
from trivium.errors import DataError

CONLLU_COLUMNS = (
    *("id", "form", "lemma", "upos", "xpos"),
    *("feats", "head", "deprel", "deps", "misc"),
)
_DOCUMENT = "-DOCSTART-"
# Ranges of multiword tokens (1-2) and empty nodes (1.1), which are no words of the sentence.
_NO_WORD = re.compile(r"\d+[-.]\d+")
# Sentences looked at to see whether the first column counts the words.
_LOOKED_AT = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The cells of one word and the number of its line."""

    line: int
    cells: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnFile:
    """The sentences of a file, all of whose rows have `width` cells.

    `numbered`: the first column counts the words of each sentence from 1.
    """

    sentences: list[list[Row]]
    width: int
    numbered: bool

    @property
    def is_conllu(self) -> bool:
        """Whether the columns are those of CoNLL-U."""
        return self.numbered and self.width == len(CONLLU_COLUMNS)


def read_columns(name: str) -> ColumnFile:
    """The rows of a file, parted by tabs if its first word has one, else by spaces.

    Left out are `-DOCSTART-` lines, comments (`# ...`) and, where words are numbered, lines for
    ranges and empty nodes.
    Raises DataError with the line where a row has fewer or more cells than the first, and where
    there is no sentence.
    """
    lines = list(numbered_lines(name))
    first = next((line for line in lines if _may_be_word(line[1])), None)
    if first is None:
        raise DataError(f"{name} holds no sentence.")
    tabs = "\t" in first[1]
    width = len(_cells(first[1], tabs))
    sentences = list(_sentences(name, lines, tabs, width, first[0]))
    numbered = width > 2 and all(map(_is_numbered, itertools.islice(sentences, _LOOKED_AT)))
    if numbered:
        kept = ([r for r in rows if not _NO_WORD.fullmatch(r.cells[0])] for rows in sentences)
        sentences = [rows for rows in kept if rows]
    return ColumnFile(sentences, width, numbered)


def _may_be_word(line: str) -> bool:
    """Whether a line is surely no blank, no comment and no document mark."""
    return bool(line.strip(" \t")) and not line.startswith(("# ", _DOCUMENT))


def _cells(line: str, tabs: bool) -> list[str]:
    # Not split(): other white space, such as the ideographic space, can be a word.
    return line.split("\t") if tabs else [cell for cell in re.split("[ \t]", line) if cell]


def _sentences(
    name: str, lines: list[tuple[int, str]], tabs: bool, width: int, first: int
) -> Iterator[list[Row]]:
    rows: list[Row] = []
    for number, line in lines:
        if not line.strip(" \t") or line.startswith(_DOCUMENT):
            if rows:
                yield rows
            rows = []
            continue
        cells = _cells(line, tabs)
        # "# O" is a word with its tag where words are parted by spaces.
        if line.startswith("# ") and (tabs or len(cells) != width):
            continue
        if len(cells) != width:
            raise DataError(
                f"{name}, line {number} has {len(cells)} column{'s' if len(cells) > 1 else ''}, "
                f'line {first} has {width}: "{line[:60]}". A line is a word and its tags, parted '
                f"by {'tabs' if tabs else 'spaces'}; a blank line ends a sentence."
            )
        rows.append(Row(number, cells))
    if rows:
        yield rows


def _is_numbered(rows: list[Row]) -> bool:
    counts = [row.cells[0] for row in rows if not _NO_WORD.fullmatch(row.cells[0])]
    return counts == [str(n) for n in range(1, len(counts) + 1)]
