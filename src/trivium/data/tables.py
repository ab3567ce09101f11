"""Records with a text field: JSON lines, CSV, TSV and Parquet."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from trivium.data.formats import Digest, ReadOptions, decoded_lines, open_bytes
from trivium.errors import DataError, MissingExtraError

_LONGEST_CELL = 1 << 28
_RECORDS = 1024


def read_table(
    name: str, suffix: str, options: ReadOptions, digest: Digest | None
) -> Iterator[str]:
    """The text field of every record of a `.jsonl`, `.csv`, `.tsv` or `.parquet` file."""
    if suffix == ".parquet":
        return _read_parquet(name, options, digest)
    lines = decoded_lines(name, options.errors, digest)
    if suffix == ".jsonl":
        return _read_json_lines(lines, name, options)
    return _read_cells(lines, name, options, tabs=suffix == ".tsv")


def _read_json_lines(lines: Iterator[str], name: str, options: ReadOptions) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if not line or line.isspace():
            continue
        where = f"{name}, line {number}"
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{where} is not valid JSON: {error}.") from error
        if not isinstance(record, dict):
            raise DataError(f"{where} is a JSON {type(record).__name__}, not an object.")
        yield from options.field_of(record, where)


def _read_cells(
    lines: Iterator[str], name: str, options: ReadOptions, *, tabs: bool
) -> Iterator[str]:
    """Cells of the text column under a header; tab-separated files have no quoting."""
    csv.field_size_limit(_LONGEST_CELL)
    ended = (line + "\n" for line in lines)
    if tabs:
        reader = csv.reader(ended, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(ended)
    header: list[str] | None = None
    try:
        for cells in reader:
            if not cells:
                continue
            if header is None:
                header = cells
            else:
                where = f"{name}, line {reader.line_num}"
                yield from options.field_of(dict(zip(header, cells)), where)
    except csv.Error as error:
        raise DataError(
            f"{name}, line {reader.line_num} is not a valid table: {error}. "
            "Is there a quotation mark that is never closed?"
        ) from error
    if header is not None and options.text_field not in header:
        list(options.field_of(dict.fromkeys(header), name))


def _read_parquet(name: str, options: ReadOptions, digest: Digest | None) -> Iterator[str]:
    """The text column, streamed; a compressed file goes through a temporary one, for seeking."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Reading Parquet", "parquet") from error
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_bytes(name))
        if digest is not None:
            with open_bytes(name, digest):
                pass
        seekable: Any = file
        if not name.lower().endswith(".parquet"):
            seekable = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, seekable, 1 << 20)
            seekable.seek(0)
        try:
            table = pyarrow.parquet.ParquetFile(seekable)
            fields = table.schema_arrow.names
            if options.text_field not in fields:
                list(options.field_of(dict.fromkeys(fields), name))
            for batch in table.iter_batches(_RECORDS, columns=[options.text_field]):
                for text in batch.column(0).to_pylist():
                    yield from options.field_of({options.text_field: text}, name)
        except pyarrow.ArrowException as error:
            raise DataError(f"{name} is not a valid Parquet file: {error}.") from error
