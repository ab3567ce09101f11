"""Reading of documents from plain text files, from a text column of records, and from the hub.

Plain text is read in parts (`read_parts`): a long document consists of several parts. Memory
therefore does not grow with the size of the corpus or of a document. The text of a record is always
a single part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Literal, TextIO

from trivium.config import option
from trivium.data.corpus_sample import sample_sources
from trivium.data.records import (
    RECORD_SUFFIXES,
    ReadReport,
    RecordOptions,
    json_type,
    read_source_records,
)
from trivium.data.schema import Fields, Schema
from trivium.data.sources import Paths, Source, SourceList, file_format, list_sources
from trivium.errors import DataError
from trivium.files import COMPRESSIONS, check_encoding, open_text

_MAX_REPORTED_SOURCES = 20  # sources whose columns are reported

PART = 1 << 20
"""The approximate size of a part of a long document, in characters."""

# In folders, `.json` files are skipped, because they usually contain metadata.
TEXT_SUFFIXES = (".txt", *(suffix for suffix in RECORD_SUFFIXES if suffix != ".json"))
"""In folders, only files with these suffixes are read as text."""

LONG_BYTES = 200_000
"""A document with more bytes probably consists of several documents."""


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One document: its text, with lines separated by line feeds, and the name of its source."""

    text: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReadOptions:
    r"""Options for reading documents.

    `separator` is "blank", "line", "file" or a string. In a string, the escapes \n and \t stand for
    a line feed and a tab. If `errors` is "replace", invalid bytes are read as U+FFFD.
    """

    separator: str = option(
        "blank", "document separator of plain text: blank (blank lines), line, file, or a string"
    )
    text_field: str = option("text", "the column of a record that contains its text")
    errors: Literal["strict", "replace"] = option("strict", "invalid bytes: stop or replace them")
    encoding: str = option("utf-8", "the encoding of text files, such as gb18030 or utf-16")

    def __post_init__(self) -> None:
        if not self.separator:
            raise DataError("The separator is empty; it is line, blank, file or a string.")
        if self.errors not in ("strict", "replace"):
            raise DataError(f'errors is "strict" or "replace", not "{self.errors}".')
        check_encoding(self.encoding)


def read_documents(
    paths: Paths, options: ReadOptions = ReadOptions(), *, max_bytes: int | None = None
) -> Iterator[Document]:
    """Yield the documents in files, globs, folders, "-" (standard input) and "hf:NAME".

    In files with named columns (see `trivium.data.records.read_records`), the text column of each
    record is a document. Standard input and all other files are plain text. Documents without a
    visible character are skipped. If `max_bytes` is set, only random parts of a large corpus are
    read, with about as many bytes (see `sample_sources`).

    Raises DataError if a source cannot be read, or if no source contains a document.
    """
    sources = list_text_sources(paths).sources
    empty = True
    for source in select_parts(sources, options, max_bytes):
        for text in join_texts(read_parts(source, options)):
            empty = False
            yield Document(text, source.name)
    if empty:
        raise make_no_text_error(sources)


def select_parts(
    sources: tuple[Source, ...], options: ReadOptions, max_bytes: int | None
) -> tuple[Source, ...]:
    """Return random parts of the sources with about `max_bytes` bytes (see `sample_sources`).

    If `max_bytes` is None, the sources are returned unchanged.
    """
    if max_bytes is None:
        return sources
    separator = resolve_escapes(options.separator)
    return sample_sources(sources, max_bytes, separator=separator, encoding=options.encoding)


def list_text_sources(paths: Paths) -> SourceList:
    """List the text sources that paths refer to.

    In folders, only files with one of `TEXT_SUFFIXES` are listed.
    """
    return list_sources(paths, TEXT_SUFFIXES)


def estimate_text_bytes(paths: Paths) -> int:
    """Estimate the uncompressed size of the texts in bytes. Returns the size.

    The uncompressed size of a compressed file is estimated as three times its size.
    """
    sources = list_text_sources(paths).sources
    return sum(source.size * (3 if source.name.endswith(COMPRESSIONS) else 1) for source in sources)


def describe_text_columns(paths: Paths, options: ReadOptions) -> list[str]:
    """Return one line per column layout, which names the text column and the ignored columns.

    Only the first record of each source is read, and only from the first few sources. A source that
    cannot be read is skipped; `read_documents` reports the error later.
    """
    schema, report = Schema((Fields("text"),), {"text": options.text_field}), ReadReport()
    reading = RecordOptions(errors=options.errors, encoding=options.encoding)
    for source in list_text_sources(paths).sources[:_MAX_REPORTED_SOURCES]:
        if _has_columns(source):
            with contextlib.suppress(DataError):
                for record in itertools.islice(read_source_records(source, reading), 1):
                    schema.resolve(record, report)
    return [*report.layouts]


def make_no_text_error(sources: tuple[Source, ...]) -> DataError:
    """Return a DataError that says that the sources contain no text."""
    return DataError(f"There is no text in {', '.join(source.name for source in sources[:5])}.")


def join_texts(parts: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Join consecutive parts into whole texts. Yields the texts.

    `parts` are pairs (part, is_last); `is_last` is True for the last part of each text.
    """
    pending: list[str] = []
    for part, is_last in parts:
        pending.append(part)
        if is_last:
            yield "".join(pending)
            pending = []


def read_parts(source: Source, options: ReadOptions) -> Iterator[tuple[str, bool]]:
    """Read the documents of a source in parts. Yields pairs (part, is_last).

    `is_last` is True for the last part of each document. Documents without a visible character are
    skipped.

    Raises DataError if a source that the user named contains no document. Files found in a folder
    may be empty.
    """
    empty = True
    for part in (_read_text_column if _has_columns(source) else _read_plain_text)(source, options):
        empty = False
        yield part
    if empty and source.named:
        name = "Standard input" if source.kind == "stdin" else source.name
        raise DataError(f"{name} is empty: it holds no document.")


def _has_columns(source: Source) -> bool:
    """Return whether a source contains records with named columns, rather than plain text."""
    return source.kind == "hub" or file_format(source.name) in RECORD_SUFFIXES


def _read_plain_text(source: Source, options: ReadOptions) -> Iterator[tuple[str, bool]]:
    """Split a plain text file into documents. Yields pairs (part, is_last) as `read_parts` does."""
    with open_text(
        source.name, errors=options.errors, encoding=options.encoding, extent=source.extent
    ) as file:
        yield from join_parts(_split_file(file, options.separator))


def _read_text_column(source: Source, options: ReadOptions) -> Iterator[tuple[str, bool]]:
    """Yield a pair (text, True) for every record. Records without text are skipped."""
    name = options.text_field
    reading = RecordOptions(None, (name,), options.errors, options.encoding, extent=source.extent)
    for record in read_source_records(source, reading):
        text = record.value(name, "--text-field NAME")
        if not isinstance(text, str | None):
            raise DataError(f'"{name}" of {record.where} is {json_type(text)}, not a string.')
        if text and not text.isspace():
            yield text.replace("\r\n", "\n"), True


def _split_file(file: TextIO, separator: str) -> Iterator[tuple[str, bool]]:
    """Split an open text file at the separator. Yields pairs (piece, ends_document).

    `ends_document` is True for the last piece of each document.
    """
    blocks = iter(functools.partial(file.read, PART), "")
    if separator == "file":
        return ((block, False) for block in blocks)
    if separator == "blank":
        return split_blocks(itertools.chain(blocks, "\n"), separator)
    return split_blocks(blocks, "\n" if separator == "line" else resolve_escapes(separator))


def split_blocks(blocks: Iterable[str], separator: str) -> Iterator[tuple[str, bool]]:
    """Split blocks of text into documents. Yields pairs (piece, ends_document).

    A document may consist of several pieces; `ends_document` is True for the last piece.

    Args:
        blocks: consecutive blocks of the text, of any length.
        separator: the separator; "blank" stands for one or more blank lines.
    """
    is_blank = separator == "blank"
    pattern = re.compile(r"\n\s*\n" if is_blank else re.escape(separator))
    carry = "\n" if is_blank else ""  # the first line may be blank
    for block in blocks:
        *ended, rest = pattern.split(carry + block)
        for text in ended:
            yield text, True
        # The last characters may be the beginning of a separator that the next block completes.
        cut = max(len(rest.rstrip()) if is_blank else len(rest) - len(separator) + 1, 0)
        carry = rest[cut:]
        if is_blank and ended and not cut:
            carry = "\n" + carry  # the next line may be blank, too
        yield rest[:cut], False
    yield carry, True


def join_parts(pieces: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """Join the small pieces of documents into parts of about `PART` characters.

    `pieces` are pairs (piece, ends_document) from `split_blocks`. Yields pairs (part, is_last);
    `is_last` is True for the last part of each document. Line feeds at both ends of a document are
    stripped. Documents without a visible character are skipped.
    """
    pending: list[str] = []
    size, is_visible = 0, False
    for piece, is_last in itertools.chain(pieces, [("", True)]):
        pending.append(piece)
        size += len(piece)
        if is_last or size >= PART:
            text = "".join(pending) if is_visible else "".join(pending).lstrip("\n")
            is_visible = is_visible or bool(text.strip())
            part = text.rstrip("\n") if is_visible else ""
            if is_visible and (part or is_last):
                yield part, is_last
            rest = "" if is_last else text[len(part) :]
            pending, size, is_visible = [rest], len(rest), is_visible and not is_last


def resolve_escapes(separator: str) -> str:
    r"""Replace the escapes \n and \t with a line feed and a tab (for command-line arguments)."""
    return separator.replace("\\n", "\n").replace("\\t", "\t")
