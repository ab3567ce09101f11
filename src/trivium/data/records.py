"""Reading of records (rows with named columns): JSON lines, CSV, TSV, Parquet, Hugging Face hub.

Texts in a text column are read as records, and so are the examples of every fine-tuning task.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import itertools
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from huggingface_hub import constants
from huggingface_hub.utils import get_session

from trivium.data.sources import Paths, Source, file_format, list_sources
from trivium.errors import DataError, did_you_mean, require_extra, shorten
from trivium.files import STDIN, open_text, reject_lfs_pointer
from trivium.messages import translated
from trivium.remote import is_remote, open_remote

_TABLE_SUFFIXES = (".csv", ".tsv")
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_SEPARATOR_HINT = f"Cells of a table are separated by {', '.join(_SEPARATORS.values())}."
_NUM_SNIFFED_LINES = 50
_MAX_CELL_LENGTH = 1 << 26
_PARQUET_BATCH_SIZE = 1024
_MAX_LAYOUTS = 5
_ERROR_DETAILS = re.compile(r'"[^"]*"|\S*\d\S*|\S+\.\w+')


@dataclasses.dataclass(frozen=True, slots=True)
class RecordOptions:
    """Options for reading records.

    Args:
        header: the column names of tables without a header line.
        columns: the columns to read from Parquet files; None for all columns. In other formats, all
            columns are always read.
        errors: "strict" to raise an error for invalid bytes, or "replace" to read them as U+FFFD.
        encoding: the encoding of text files.
        bad: a counter of invalid records. If it is set, invalid records are counted and skipped. If
            None, an invalid record raises an error.
        report: a report that counts the column layouts of the records.
        extent: the part of a file with JSON lines that is read, as in `Source`.
    """

    header: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    errors: str = "strict"
    encoding: str = "utf-8"
    bad: BadRecords | None = None
    report: ReadReport | None = None
    extent: tuple[int, int] | None = None

    def count_or_raise(self, error: DataError) -> None:
        """Count the error of an invalid record in `bad` if `bad` is set, otherwise raise it."""
        if self.bad is None:
            raise error
        self.bad.add(error)

    @contextlib.contextmanager
    def skip_invalid_records(self) -> Iterator[None]:
        """Context manager that skips an invalid record if `bad` is set.

        If the `with` block raises a DataError, the error is counted in `bad`. If `bad` is None, the
        error is not caught.
        """
        try:
            yield
        except DataError as error:
            self.count_or_raise(error)


class BadRecords:
    """Counts invalid records that are skipped, by the kind of error.

    Two errors are of the same kind if they differ only in names, numbers and quoted text. The first
    error of each kind is kept as an example.
    """

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self._first: dict[str, DataError] = {}

    def add(self, error: DataError) -> None:
        """Count an invalid record under the kind of its error."""
        kind = _ERROR_DETAILS.sub("", str(error))
        self.kinds[kind] += 1
        self._first.setdefault(kind, error)

    def to_notes(self) -> list[tuple[str, int, str]]:
        """Return the counts as plain values: the kind, the count and the first error of each kind.

        `restore` reads them again.
        """
        return [(kind, count, str(self._first[kind])) for kind, count in self.kinds.items()]

    def restore(self, notes: Sequence[Sequence[Any]]) -> None:
        """Replace the counts with those that `to_notes` has returned."""
        self.kinds = Counter({kind: count for kind, count, _ in notes})
        self._first = {kind: DataError(first) for kind, _, first in notes}

    @property
    def count(self) -> int:
        """The number of skipped records."""
        return self.kinds.total()

    @property
    def lines(self) -> list[str]:
        """One line per kind of error: its count and an example. The most frequent kind is first."""
        return [f"{count:,} x {self._first[kind]}" for kind, count in self.kinds.most_common()]

    def describe_skipped(self, num_read: int) -> list[str]:
        """Return the lines of a message about the skipped records; [] if there are none.

        `num_read` is the number of valid records.
        """
        total = self.count + num_read
        return [f"{self.count:,} of {total:,} records are skipped:", *self.lines] * bool(self.count)


class ReadReport:
    """Counts column layouts, unused parts of chat messages and special cases in a run's records."""

    def __init__(self) -> None:
        self.layouts: dict[str, tuple[int, str]] = {}
        """For each layout line, the number of records and the location of the first record."""
        self.unused: Counter[str] = Counter()
        """For each unused part of chat messages, the number of messages that have this part."""
        self.notes: Counter[str] = Counter()
        """For each special case, named by its catalog message, the number of records."""

    def add_layout(self, line: str, location: str) -> None:
        """Count a record under its column layout.

        Args:
            line: a description of the columns of the record, from `format_layout`.
            location: the file and line of the record.
        """
        count, first = self.layouts.get(line, (0, location))
        self.layouts[line] = count + 1, first

    def to_notes(self) -> dict[str, Any]:
        """Return the counts as plain values. `restore` reads them again."""
        return {"layouts": self.layouts, "unused": self.unused, "notes": self.notes}

    def restore(self, notes: Mapping[str, Any]) -> None:
        """Replace the counts with those that `to_notes` has returned."""
        self.layouts = {line: (count, where) for line, (count, where) in notes["layouts"].items()}
        self.unused, self.notes = Counter(notes["unused"]), Counter(notes["notes"])

    @property
    def lines(self) -> list[str]:
        """The report as lines of text in the user's language."""
        lines = [*self.layouts]
        if len(lines) > 1:
            lines = [
                translated("data.layout", line=line, count=count, where=where)
                for line, (count, where) in self.layouts.items()
            ]
        more = len(lines) - _MAX_LAYOUTS
        if more > 0:
            lines[_MAX_LAYOUTS:] = [translated("data.more_layouts", count=more)]
        if self.unused:
            names = ", ".join(f"{name} ({count:,})" for name, count in self.unused.items())
            lines.append(translated("data.unused", names=names))
        for identifier, count in self.notes.items():
            lines.append(translated(identifier, count=count))
        return lines


class Record(dict[str, Any]):
    """One row of a data file: a dictionary from column names to values, and the row's location.

    Args:
        columns: the values by column name, which become the content of the dictionary.
        where: the location of the row for messages, such as "reviews.csv, line 3".
        untyped: whether every value is a string, as in CSV and TSV files.
        class_names: for each column that contains class indices, the class names.

    Attributes:
        columns: for each field of the fine-tuning task, the name of its column; set by
            `Schema.resolve`.
        report: the `ReadReport` of the run; set by `Schema.resolve`.
    """

    __slots__ = ("class_names", "columns", "report", "untyped", "where")

    def __init__(
        self,
        columns: dict[str, Any],
        where: str,
        *,
        untyped: bool = False,
        class_names: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        super().__init__(columns)
        self.where = where
        self.untyped = untyped
        self.class_names = class_names
        self.columns: Mapping[str, str] = {}
        self.report: ReadReport | None = None

    def value(self, column: str, option: str = "") -> Any:
        """Return the value of a column. The name of a nested column is, for example, "text.en".

        Raises DataError if there is no such column. `option` is the setting that selects the
        column; the error message suggests it.
        """
        if column in self:
            return self[column]
        value: Any = self
        for part in column.split("."):
            if not isinstance(value, dict) or part not in value:
                raise self.make_column_error([f'"{column}"'], [option])
            value = value[part]
        return value

    def value_with_class_names(self, column: str) -> Any:
        """Return the value of a column, with class indices replaced with class names.

        An index without a name, such as -1 for a missing label, becomes None.
        """
        return replace_class_indices(self.value(column), column, self.class_names)

    def text(self, column: str) -> str:
        """Return the text in a column. Raises DataError if the value is blank or not a string."""
        value = self.value(column)
        if not isinstance(value, str):
            raise DataError(f"{self.locate(column)} is {json_type(value)}, not a string.")
        if not value or value.isspace():
            raise DataError(f"{self.locate(column)} is blank. Fill it in, or remove the row.")
        return value

    def optional_text(self, field: str) -> str | None:
        """Return the text of an optional field, or None if there is no text.

        There is no text if the field has no column, or if its value is null or blank.

        Raises DataError if the value is not a string.
        """
        value = self.value(self.columns[field]) if field in self.columns else None
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        return self.text(self.columns[field])

    def count_in_report(self, identifier: str) -> None:
        """Count a special case of this record in the report that the user sees.

        `identifier` names the catalog message that describes the special case.
        """
        if self.report is not None:
            self.report.notes[identifier] += 1

    def locate(self, column: str) -> str:
        """Return the name of a column and the location of the record, for error messages."""
        numbered = " (columns are numbered from 0)" if self.has_numbered_columns else ""
        return f'"{column}"{numbered} of {self.where}'

    def has(self, column: str) -> bool:
        """Return whether the record has a column. The name of a nested column contains a dot."""
        try:
            self.value(column)
        except DataError:
            return False
        return True

    def column_names(self) -> list[str]:
        """Return the names of all columns, each followed by the names of its nested columns."""
        names = []
        for name, value in self.items():
            names.append(name)
            if isinstance(value, dict):
                names += [f"{name}.{part}" for part in value]
        return names

    @property
    def column_source(self) -> str:
        """A description of where the column names are defined, for error messages.

        For CSV and TSV, it is the name of the file. For other formats, it is the row's location.
        """
        return self.where.rsplit(", line ", 1)[0] if self.untyped else self.where

    @property
    def has_numbered_columns(self) -> bool:
        """Whether the names of the columns are numbers, because the table has no header."""
        return self.untyped and list(self) == [str(number) for number in range(len(self))]

    def make_column_error(
        self, missing: Sequence[str], options: Sequence[str], *, if_data: str = "add a header line"
    ) -> DataError:
        """Return a DataError about missing columns. Its message lists the existing columns.

        Args:
            missing: descriptions of the missing columns; column names are in double quotes.
            options: the settings that select these columns.
            if_data: advice to show if the first line of the table may be data, not a header.
        """
        inner = {name for name, value in self.items() if isinstance(value, dict) and value}
        columns = [f'"{shorten(one, 40)}"' for one in self.column_names() if one not in inner]
        quoted = (one[1:-1] for one in missing if one[0] == '"')
        near = next(filter(None, (did_you_mean(one, self.column_names()) for one in quoted)), "")
        choose = f" Choose with {' '.join(filter(None, options))}." if any(options) else ""
        message = f"{self.column_source} has no column {' and none '.join(missing)}; it has "
        message += f"{', '.join(columns[:20]) or 'none'}.{near}{choose}"
        if self.has_numbered_columns:
            message += " Columns of a table without a header are numbered from 0."
        elif self.untyped and not all(name.isidentifier() for name in self):
            message += f" These are the cells of the first line: if it is data, {if_data}."
            message += f" {_SEPARATOR_HINT}"
        return DataError(message)


def replace_class_indices(value: Any, column: str, names: Mapping[str, Sequence[str]]) -> Any:
    """Replace all class indices in a value with class names, also in nested values.

    Args:
        value: the value of a column.
        column: the name of the column. Nested columns have names such as "translation.en".
        names: the class names by column.

    Returns:
        The new value. An index without a name, such as -1, becomes None.
    """
    if isinstance(value, Mapping):
        return {k: replace_class_indices(v, f"{column}.{k}", names) for k, v in value.items()}
    if isinstance(value, list):
        return [replace_class_indices(v, column, names) for v in value]
    if column not in names or not isinstance(value, int) or isinstance(value, bool):
        return value
    return names[column][value] if 0 <= value < len(names[column]) else None


def json_type(value: object) -> str:
    """Describe the JSON type of a value in words, such as "a list", for error messages.

    A string without a visible character is "blank".
    """
    if isinstance(value, str) and not value.strip():
        return "blank"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    names = {str: "a string", dict: "an object", list: "a list", type(None): "null"}
    numbers = dict.fromkeys((int, float), "a number")
    return (names | numbers).get(type(value), f"of type {type(value).__name__}")


def read_records(paths: Paths, options: RecordOptions = RecordOptions()) -> Iterator[Record]:
    """Yield the records in files, globs, folders, "hf:NAME" and "-" (standard input).

    Standard input contains JSON lines. The formats are:

    - `.jsonl`: one object per line; blank lines are skipped.
    - `.json`: the same, or a list of objects.
    - `.csv` and `.tsv`: a header, then one row per record. Every row has as many cells as the
      header. Quotation marks have no special meaning in TSV.
    - `.parquet`: requires the extra "parquet".
    - All formats except Parquet may be compressed: `.gz`, `.bz2`, `.xz`, `.zst`.
    - `hf:NAME[@REVISION][:CONFIG][:SPLIT]`: a dataset on the Hugging Face hub, streamed.

    Raises:
        DataError: a path is missing, a suffix is unknown, a source has no record, or a record is
            invalid (the message contains its file and line).
    """
    for source in list_sources(paths, RECORD_SUFFIXES).sources:
        empty = True
        for record in read_source_records(source, options):
            empty = False
            yield record
        if empty and source.named:
            raise DataError(f"{source.name} holds no record.")


def read_source_records(source: Source, options: RecordOptions) -> Iterator[Record]:
    """Return an iterator over the records of one source. There may be no records.

    The formats are those of `read_records`. Raises DataError if the suffix of a file is unknown.
    """
    if source.kind == "hub":
        return _read_hub_dataset(source.name)
    suffix = ".jsonl" if source.kind == "stdin" else file_format(source.name)
    if suffix in RECORD_FORMATS:
        return RECORD_FORMATS[suffix](source.name, options)
    raise DataError(
        f"{source.name} has none of the suffixes {' '.join(RECORD_SUFFIXES)} that say how its "
        "records are laid out. Convert it to one of them (spreadsheets: save as CSV in UTF-8), "
        "or rename it."
    )


def read_header(path: str, encoding: str = "utf-8") -> tuple[str, ...]:
    """Return the cells of the first line of a CSV or TSV file, or () for other formats.

    The first line may be a header or data.
    """
    if file_format(path) not in _TABLE_SUFFIXES:
        return ()
    rows = _read_table_rows(path, RecordOptions(errors="replace", encoding=encoding))
    return next((tuple(map(str.strip, cells)) for _, cells in rows), ())


def _read_json_lines(path: str, options: RecordOptions) -> Iterator[Record]:
    """Yield the records of a file with one JSON object per line. Blank lines are skipped."""
    place = "standard input" if path == STDIN else path
    place += f" from byte {options.extent[0]:,} on" if options.extent else ""
    with _open_file(path, options) as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                location = f"{place}, line {number}"
                with options.skip_invalid_records():
                    yield _to_record(_parse_json(line.rstrip(), location, options.errors), location)


def _read_json(path: str, options: RecordOptions) -> Iterator[Record]:
    """Yield the records of a `.json` file: a list of objects, or one object per line."""
    with _open_file(path, options) as file:
        text = file.read()
    if not text.lstrip().startswith("["):
        yield from _read_json_lines(path, options)
        return
    for number, value in enumerate(_parse_json(text, path, options.errors), start=1):
        with options.skip_invalid_records():
            yield _to_record(value, f"{path}, item {number}")


def _parse_json(text: str, location: str, errors: str) -> Any:
    """Parse a JSON value. Returns the value.

    `location` is the file and line for error messages. `errors` says how to handle lone surrogates
    ("strict" or "replace"), as in `replace_surrogates`.

    Raises DataError if the text is not valid JSON.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f", line {error.lineno}" if error.lineno > 1 else ""
        raise DataError(
            f"{location}{place} is not valid JSON: {error.msg} at character {error.colno}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location} is not valid JSON: {error}.") from error
    if "\\ud" in text or "\\uD" in text:
        value = replace_surrogates(value, location, errors)
    return value


def replace_surrogates(value: Any, location: str, errors: str) -> Any:
    """Replace lone surrogates in the strings of a JSON value, because UTF-8 cannot encode them.

    Returns the new value. If `errors` is "replace", a lone surrogate becomes U+FFFD. If `errors` is
    "strict", a lone surrogate raises DataError; `location` is part of the message.
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            raise DataError(
                f"{location} holds a lone surrogate (half of a \\ud83d\\ude00 pair), which is not "
                "text. Correct it, or replace it with --errors replace."
            ) from error
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.loads(text)


def _to_record(value: object, location: str) -> Record:
    """Convert a JSON object to a `Record`. Raises DataError if the value is not an object."""
    if not isinstance(value, dict):
        raise DataError(f"{location} is {json_type(value)}, not an object with named columns.")
    return Record(value, location)


def _read_table(path: str, options: RecordOptions) -> Iterator[Record]:
    """Yield the rows of a CSV or TSV file.

    The header is `options.header` if set, otherwise the first row of the file.
    """
    names = options.header
    for line, cells in _read_table_rows(path, options):
        where = f"{path}, line {line}"
        if names is None:
            names = [cell.strip() for cell in cells]
            # The first column may stay unnamed; further unnamed columns are named by their number.
            unnamed = [number for number, name in enumerate(names) if not name]
            for number in unnamed[1:]:
                names[number] = str(number)
            twice = next((cell for cell in names if cell and names.count(cell) > 1), None)
            if twice is not None:
                raise DataError(
                    f'{where}: the header has the column "{shorten(twice, 40)}" twice. If the '
                    "first line is data, add a header line."
                )
        elif len(cells) != len(names):
            problem = (
                f"{where} has {len(cells)} cells, the header has {len(names)} "
                f"({', '.join(shorten(column, 40) for column in names[:20])}). "
                f"Is there an unquoted separator in a cell? {_SEPARATOR_HINT}"
            )
            options.count_or_raise(DataError(problem))
        else:
            yield Record(dict(zip(names, cells)), where, untyped=True)


def _open_file(path: str, options: RecordOptions) -> AbstractContextManager[TextIO]:
    """Open a text file with the encoding and the error handling from the options."""
    return open_text(path, errors=options.errors, encoding=options.encoding, extent=options.extent)


def _read_table_rows(path: str, options: RecordOptions) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) for every row of a CSV or TSV file, including the header.

    The line number is that of the first line of the row.

    Warns if the separator is not the usual one for the file's suffix.
    """
    with _open_file(path, options) as file:
        csv.field_size_limit(_MAX_CELL_LENGTH)
        default = "\t" if file_format(path) == ".tsv" else ","
        lines = list(itertools.islice(file, _NUM_SNIFFED_LINES))
        declared = re.fullmatch(r'"?sep=(.)"?\s*', lines[0]) if lines else None  # written by Excel
        lines[:1] = ["\n"] if declared else lines[:1]
        separator = declared[1] if declared else _detect_separator(lines, default)
        if separator != default:
            by = _SEPARATORS.get(separator, f'"{separator}"')
            warnings.warn(f"the cells of {path} are separated by {by}.", stacklevel=2)
        is_quoted = not separator == default == "\t"
        # strict: a quotation mark that is never closed is an error, not a very long cell.
        reader = csv.reader(
            itertools.chain(lines, file),
            delimiter=separator,
            quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
            strict=True,
        )
        first = 1
        try:
            for cells in reader:
                if any(cells) and not (len(cells) == 1 and cells[0].isspace()):
                    yield first, cells
                first = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{path}: the row that begins in line {first} is not valid CSV ({error}). "
                "Is there a quotation mark that is never closed?"
            ) from error


def _detect_separator(lines: Sequence[str], default: str) -> str:
    """Return the cell separator of a CSV or TSV file, detected from its first lines.

    With this separator, the largest fraction of lines has as many cells as the first line. If no
    separator splits the first line, `default` is returned.
    """
    if default == "\t" and lines and default in lines[0]:
        return default
    best, most = default, 0.0
    for separator in (default, *_SEPARATORS):
        with contextlib.suppress(csv.Error):
            widths = [len(cells) for cells in csv.reader(lines, delimiter=separator) if any(cells)]
            share = widths.count(widths[0]) / len(widths) if widths and widths[0] > 1 else 0.0
            if share > most:
                best, most = separator, share
    return best


def _read_parquet(path: str, options: RecordOptions) -> Iterator[Record]:
    """Yield the rows of a Parquet file.

    Class names stored in the file by the `datasets` library are added to the rows.
    """
    with require_extra("Reading Parquet", "parquet"):
        import pyarrow
        import pyarrow.parquet
    try:
        if not is_remote(path):
            reject_lfs_pointer(path)
        table = pyarrow.parquet.ParquetFile(open_remote(path) if is_remote(path) else path)
        columns = options.columns or ()
        read = list(columns) if columns and {*columns} <= {*table.schema_arrow.names} else None
        names, number = {}, 0
        with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
            stored = json.loads(table.schema_arrow.metadata[b"huggingface"])
            names = extract_class_names(stored["info"]["features"])
        for batch in table.iter_batches(_PARQUET_BATCH_SIZE, columns=read):
            for row in batch.to_pylist():
                number += 1
                yield Record(row, f"{path}, row {number}", class_names=names)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        # Invalid UTF-8, times that Python cannot represent and unknown time zones raise errors that
        # are not subclasses of ArrowException.
        raise DataError(f"{path} is not a valid Parquet file: {error}.") from error


def extract_class_names(features: Any) -> dict[str, tuple[str, ...]]:
    """Return a dictionary from each ClassLabel column to its class names.

    `features` are the features of a dataset, as in the `datasets` library.

    >>> extract_class_names({"tags": [{"_type": "ClassLabel", "names": ["O", "B-PER"]}]})
    {'tags': ('O', 'B-PER')}
    """
    names: dict[str, tuple[str, ...]] = {}
    for column, feature in features.items():
        while isinstance(feature, list | dict):
            if isinstance(feature, list):  # of one feature: a list of its values
                feature = feature[0] if feature else None
            elif feature.get("_type") == "ClassLabel":
                names[column] = tuple(map(str, feature.get("names") or ()))
                break
            elif "_type" not in feature:
                inner = extract_class_names(feature)
                names |= {f"{column}.{name}": one for name, one in inner.items()}
                break
            else:
                feature = feature.get("feature")
    return names


RECORD_FORMATS: dict[str, Callable[[str, RecordOptions], Iterator[Record]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
}
"""For each file suffix with named columns, the function that reads such files."""

RECORD_SUFFIXES = tuple(RECORD_FORMATS)

# Hub datasets that need a loading script, mapped to Parquet datasets with the same or newer text.
_PARQUET_TWINS = {
    "bookcorpus": "rojagtap/bookcorpus",
    "wikipedia": "wikimedia/wikipedia:20231101.{language}",
}


@functools.cache
def find_hub_problem() -> str | None:
    """Return why the hub cannot be reached, as a sentence with a remedy, or None if it answers.

    Without this question, its libraries retry each of their requests five times, with pauses.
    """
    endpoint = constants.ENDPOINT
    try:
        get_session().head(endpoint, timeout=10)
    except Exception as error:  # its type depends on the version of huggingface_hub
        return (
            f"{endpoint} cannot be reached ({shorten(str(error), 160)}). Check the network, name a "
            "mirror in the environment variable HF_ENDPOINT, or give files on this machine."
        )
    return None


def _read_hub_dataset(name: str) -> Iterator[Record]:
    """Yield the rows of a hub dataset, `hf:NAME[@REVISION][:CONFIG][:SPLIT]`.

    The default split is "train".
    """
    with require_extra("Reading data of the hub", "hub"):
        import datasets
    parts = name.removeprefix("hf:").split(":")
    dataset, _, revision = parts[0].partition("@")
    if not dataset or len(parts) > 3:
        raise DataError(f'"{name}" is not a data set; write hf:NAME or hf:NAME:CONFIG:SPLIT.')
    config = parts[1] if len(parts) > 1 and parts[1] else None
    split = parts[2] if len(parts) > 2 and parts[2] else "train"
    if not Path(dataset).exists() and (problem := find_hub_problem()):
        raise DataError(f"{name} cannot be read: {problem}")
    try:
        rows = datasets.load_dataset(
            dataset, config, split=split, revision=revision or None, streaming=True
        )
        features = getattr(rows, "features", None)
        names = extract_class_names(features.to_dict()) if features else {}
        for number, row in enumerate(rows, start=1):
            yield Record(dict(row), f"{name}, row {number}", class_names=names)
    except RuntimeError as error:  # A loading script, which is never executed.
        twin = _PARQUET_TWINS.get(dataset.rpartition("/")[2], "")
        language = (config or "en").rpartition(".")[2]
        advice = (
            f"The hub has such text as Parquet: hf:{twin.format(language=language)}"
            if twin
            else "The hub often has its rows as Parquet, too: try "
            f"hf:{dataset}@refs/convert/parquet"
        )
        raise DataError(f"{name} cannot be read: {error}. {advice}.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{name} cannot be read: {error}") from error
