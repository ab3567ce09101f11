"""Documents: the texts of plain files, of a text column of records, and of the hub, as a stream.

Plain text is read in parts (`read_parts`), so that memory does not grow with the corpus, nor with a
document of any length; a record is read whole.
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

_LOOKED_AT = 20  # sources whose columns are reported

PART = 1 << 20
"""About how many characters of a long document are read at a time."""

# In folders `.json` is left out: there it is more often metadata than text.
TEXT_SUFFIXES = (".txt", *(suffix for suffix in RECORD_SUFFIXES if suffix != ".json"))
"""Files that are read as text where they are in a folder."""

LONG_BYTES = 200_000
"""Documents with more bytes are probably several documents."""


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One document: its text, with line feeds between lines, and the name of its source."""

    text: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReadOptions:
    """How documents are read.

    In a separator other than the named ones, backslash-n and backslash-t are escapes. With
    errors="replace", invalid bytes are read as U+FFFD.
    """

    separator: str = option(
        "blank", "document separator of plain text: blank (lines), line, file, or a string"
    )
    text_field: str = option("text", "the column of a record that is its text")
    errors: Literal["strict", "replace"] = option("strict", "invalid bytes: stop, or replace")
    encoding: str = option("utf-8", "the encoding of text files, such as gb18030 or utf-16")

    def __post_init__(self) -> None:
        if not self.separator:
            raise DataError("The separator is empty; it is line, blank, file or a string.")
        if self.errors not in ("strict", "replace"):
            raise DataError(f'errors is "strict" or "replace", not "{self.errors}".')
        check_encoding(self.encoding)


def read_documents(paths: Paths, options: ReadOptions = ReadOptions()) -> Iterator[Document]:
    """Yield the documents of files, globs, folders, "-" (standard input) and "hf:NAME".

    Files in one of the formats of `trivium.data.records.read_records` are read by their text
    column. Standard input and files with any other suffix are plain text. Documents without a
    visible character are left out.

    Raises DataError if something cannot be read, or if there is no document at all.
    """
    sources = list_texts(paths).sources
    empty = True
    for source in sources:
        for text in join_texts(read_parts(source, options)):
            empty = False
            yield Document(text, source.name)
    if empty:
        raise no_text(sources)


def list_texts(paths: Paths) -> SourceList:
    """Return the sources of raw text. Files of folders need one of the `TEXT_SUFFIXES`."""
    return list_sources(paths, TEXT_SUFFIXES)


def text_bytes(paths: Paths) -> int:
    """Return about how many bytes of text there are; the size of compressed files counts thrice."""
    sources = list_texts(paths).sources
    return sum(one.size * (3 if one.name.endswith(COMPRESSIONS) else 1) for one in sources)


def text_columns(paths: Paths, options: ReadOptions) -> list[str]:
    """Return a line for each layout of records: the column that is read, and the ignored columns.

    Only the first record of each of the first sources is read. A source that cannot be read is
    left out, because `read_documents` reports it.
    """
    schema, report = Schema((Fields("text"),), {"text": options.text_field}), ReadReport()
    reading = RecordOptions(errors=options.errors, encoding=options.encoding)
    for source in list_texts(paths).sources[:_LOOKED_AT]:
        if _has_columns(source):
            with contextlib.suppress(DataError):
                for record in itertools.islice(read_source_records(source, reading), 1):
                    schema.resolve(record, report)
    return [*report.layouts]


def no_text(sources: tuple[Source, ...]) -> DataError:
    """Return the error for sources without any document."""
    return DataError(f"There is no text in {', '.join(source.name for source in sources[:5])}.")


def join_texts(parts: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Yield whole texts from their parts; each part comes with whether it is the last one."""
    held: list[str] = []
    for part, is_last in parts:
        held.append(part)
        if is_last:
            yield "".join(held)
            held = []


def read_parts(source: Source, options: ReadOptions) -> Iterator[tuple[str, bool]]:
    """Yield the texts of one source in parts, each with whether it is the last of its text.

    Texts without a visible character are left out.

    Raises DataError if the source has no text and was named, not found in a folder.
    """
    empty = True
    for part in (_read_column if _has_columns(source) else _read_plain)(source, options):
        empty = False
        yield part
    if empty and source.named:
        name = "Standard input" if source.kind == "stdin" else source.name
        raise DataError(f"{name} is empty: it holds no document.")


def _has_columns(source: Source) -> bool:
    return source.kind == "hub" or file_format(source.name) in RECORD_SUFFIXES


def _read_plain(source: Source, options: ReadOptions) -> Iterator[tuple[str, bool]]:
    with open_text(source.name, errors=options.errors, encoding=options.encoding) as file:
        yield from join_parts(_split(file, options.separator))


def _read_column(source: Source, options: ReadOptions) -> Iterator[tuple[str, bool]]:
    name = options.text_field
    reading = RecordOptions(None, (name,), options.errors, options.encoding)
    for record in read_source_records(source, reading):
        text = record.value(name, "--text-field NAME")
        if not isinstance(text, str | None):
            raise DataError(f'"{name}" of {record.where} is {json_type(text)}, not a string.')
        if text and not text.isspace():
            yield text.replace("\r\n", "\n"), True


def _split(file: TextIO, separator: str) -> Iterator[tuple[str, bool]]:
    """Yield pieces of plain text, each with whether a document ends with it."""
    blocks = iter(functools.partial(file.read, PART), "")
    if separator == "file":
        return ((block, False) for block in blocks)
    if separator == "blank":
        return split_blocks(itertools.chain(blocks, "\n"), separator)
    return split_blocks(blocks, "\n" if separator == "line" else unescape(separator))


def split_blocks(blocks: Iterable[str], separator: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of text between separators, each with whether a document ends with it.

    The separator "blank" stands for every blank line.
    """
    is_blank = separator == "blank"
    pattern = re.compile(r"\n\s*\n" if is_blank else re.escape(separator))
    carry = "\n" if is_blank else ""  # the first line may be blank
    for block in blocks:
        *ended, rest = pattern.split(carry + block)
        for text in ended:
            yield text, True
        # The last characters may begin a separator that the next block completes.
        cut = max(len(rest.rstrip()) if is_blank else len(rest) - len(separator) + 1, 0)
        carry = rest[cut:]
        if is_blank and ended and not cut:
            carry = "\n" + carry  # the next line, too, may be blank
        yield rest[:cut], False
    yield carry, True


def join_parts(pieces: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """Join the pieces of every document into parts, without the line feeds around the document.

    Documents without a visible character are left out.
    """
    held: list[str] = []
    size, is_visible = 0, False
    for piece, is_last in itertools.chain(pieces, [("", True)]):
        held.append(piece)
        size += len(piece)
        if is_last or size >= PART:
            text = "".join(held) if is_visible else "".join(held).lstrip("\n")
            is_visible = is_visible or bool(text.strip())
            part = text.rstrip("\n") if is_visible else ""
            if is_visible and (part or is_last):
                yield part, is_last
            rest = "" if is_last else text[len(part) :]
            held, size, is_visible = [rest], len(rest), is_visible and not is_last


def unescape(separator: str) -> str:
    """Return a separator from the command line with backslash-n and backslash-t resolved."""
    return separator.replace("\\n", "\n").replace("\\t", "\t")
