"""Sentences with a tag for every word: CoNLL columns, CoNLL-U and JSON lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from trivium.data.labelled.columns import CONLLU_COLUMNS, ColumnFile, Row, read_columns
from trivium.data.labelled.files import Paths, example_files, layout_of
from trivium.data.labelled.labels import natural_order
from trivium.data.labelled.records import (
    FieldNames,
    Record,
    field_value,
    find_field,
    json_type,
    read_records,
)
from trivium.errors import DataError, did_you_mean

COLUMN_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".txt", ".tsv")
JSON_SUFFIXES = (".jsonl", ".json")
WORDS = ("words", "tokens")
TAGS = ("tags", "labels", "ner_tags", "pos_tags")


@dataclasses.dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words, as many tags, the place of the sentence and, in a file of columns, every word's line.

    `lines` is empty where the sentence stands in one line.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str
    lines: tuple[int, ...] = ()

    @property
    def group(self) -> str:
        """What keeps examples on one side of a division: the words."""
        return " ".join(self.words)

    def where_word(self, index: int) -> str:
        """The place of one word, for messages."""
        if not self.lines:
            return f"{self.where}, word {index + 1}"
        return f"{self.where.rpartition(', line ')[0]}, line {self.lines[index]}"


def read_tagged(
    paths: Paths,
    *,
    column: int | str | None = None,
    word_column: int | None = None,
    words_field: str | None = None,
    tags_field: str | None = None,
) -> list[TaggedSentence]:
    """The tagged sentences of files.

    - Columns parted by tabs or spaces, a word a line, blank lines between sentences: the tag is
      in `column` (from 0; negative from the end), by default the last, the word in `word_column`,
      by default 0. Where the first column counts the words, these are 2 and 1.
    - CoNLL-U, known by `.conllu` or by ten numbered columns: the word is FORM, the tag the column
      of that name, by default "upos". Ranges and empty nodes are passed over.
    - JSON lines: lists `words` or `tokens` and `tags`, `labels`, `ner_tags` or `pos_tags`.

    Tags are as written; see `repair_iob`.
    Raises DataError with file and line at a row of another width, a missing column or field, a
    word without a tag, and lists of different lengths.
    """
    found: list[TaggedSentence] = []
    names = FieldNames(
        lambda record: (
            find_field(record, "words", WORDS, "words_field", words_field),
            find_field(record, "tags", TAGS, "tags_field", tags_field),
        )
    )
    for file in example_files(paths, (*COLUMN_SUFFIXES, *JSON_SUFFIXES)):
        if layout_of(file) in JSON_SUFFIXES:
            found.extend(_of_record(record, *names.of(record)) for record in read_records(file))
        else:
            found.extend(_of_columns(file, column, word_column))
    return found


def tag_names(sentences: Iterable[TaggedSentence]) -> tuple[str, ...]:
    """The different tags, in natural order."""
    return natural_order(tag for sentence in sentences for tag in sentence.tags)


def _of_columns(
    file: str, column: int | str | None, word_column: int | None
) -> Iterator[TaggedSentence]:
    content = read_columns(file)
    word, tag, nothing = _choose_columns(file, content, column, word_column)
    for rows in content.sentences:
        for row in rows:
            _check_row(file, row, word, tag, nothing)
        yield TaggedSentence(
            tuple(row.cells[word] for row in rows),
            tuple(row.cells[tag] for row in rows),
            f"{file}, line {rows[0].line}",
            tuple(row.line for row in rows),
        )


def _choose_columns(
    file: str, content: ColumnFile, column: int | str | None, word_column: int | None
) -> tuple[int, int, str]:
    """The columns of word and tag, and what stands for a tag that is missing."""
    numbered = content.numbered and word_column is None
    nothing = ""
    if column is None and layout_of(file) == ".conllu":
        column = "upos"
    if column is None and content.is_conllu and numbered:
        column = "upos"
    if isinstance(column, str):
        column = _conllu_column(file, content, column)
        # In the other columns "_" is a value: a word without features.
        nothing = "_" if CONLLU_COLUMNS[column] in ("upos", "xpos") else ""
    if column is None:
        column = 2 if numbered else -1
    word = word_column if word_column is not None else int(numbered)
    for what, index in (("tag", column), ("word", word)):
        if not -content.width <= index < content.width:
            raise DataError(
                f"{file} has {content.width} columns, 0 to {content.width - 1}; the {what} "
                f"cannot be in column {index}."
            )
    if word % content.width == column % content.width:
        raise DataError(
            f"{file}: word and tag are both in column {word} of {content.width}. Name the "
            "column of the tag, and word_column if it is not the first."
        )
    return word, column, nothing


def _conllu_column(file: str, content: ColumnFile, column: str) -> int:
    if column not in CONLLU_COLUMNS:
        raise DataError(
            f'CoNLL-U has no column "{column}"; known are {", ".join(CONLLU_COLUMNS)}.'
            f"{did_you_mean(column, CONLLU_COLUMNS)}"
        )
    if not content.is_conllu:
        raise DataError(
            f'{file} has no column "{column}": it is not CoNLL-U, of ten columns parted by tabs '
            f"that begin with the number of the word. It has {content.width} columns; give the "
            "number of one."
        )
    return CONLLU_COLUMNS.index(column)


def _check_row(file: str, row: Row, word: int, tag: int, nothing: str) -> None:
    if not row.cells[word]:
        raise DataError(f"{file}, line {row.line} has no word in column {word}.")
    if row.cells[tag] in ("", nothing):
        raise DataError(
            f'{file}, line {row.line}: the word "{row.cells[word]}" has no tag in column {tag}.'
        )


def _of_record(record: Record, words_field: str, tags_field: str) -> TaggedSentence:
    words = _listed(record, words_field)
    tags = _listed(record, tags_field)
    if not words:
        raise DataError(f"{record.where} has no words. Fill them in, or remove the sentence.")
    if len(words) != len(tags):
        raise DataError(
            f"{record.where} has {len(words)} words and {len(tags)} tags; every word has one tag."
        )
    return TaggedSentence(words, tags, record.where)


def _listed(record: Record, name: str) -> tuple[str, ...]:
    """A field that is a list of texts; numbers, as tags may be, become texts."""
    value = field_value(record, name)
    if not isinstance(value, list):
        raise DataError(f'The field "{name}" of {record.where} is {json_type(value)}, not a list.')
    for index, one in enumerate(value, start=1):
        if isinstance(one, bool) or not isinstance(one, str | int) or one == "":
            shown = "blank" if one == "" else json_type(one)
            raise DataError(f'Item {index} of the field "{name}" of {record.where} is {shown}.')
    return tuple(map(str, value))
