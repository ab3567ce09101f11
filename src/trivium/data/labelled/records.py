"""Records with named fields and the place of each: JSON lines, JSON lists, CSV and TSV."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from trivium.data.labelled.files import file_text, layout_of, numbered_lines
from trivium.errors import DataError, did_you_mean

RECORD_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
_LONGEST_CELL = 1 << 28

Names = TypeVar("Names")


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The fields of one record and its place. In a record of a table every value is a text."""

    fields: dict[str, Any]
    where: str
    of_table: bool = False


class FieldNames(Generic[Names]):
    """Which field is which, found once for every set of fields that records have."""

    def __init__(self, find: Callable[[Record], Names]) -> None:
        self._find = find
        self._known: dict[tuple[str, ...], Names] = {}

    def of(self, record: Record) -> Names:
        """What `find` says of the record, or said of one with the same fields."""
        key = tuple(record.fields)
        if key not in self._known:
            self._known[key] = self._find(record)
        return self._known[key]


def read_records(name: str) -> Iterator[Record]:
    """The records of one file, by its suffix.

    - `.jsonl`: an object a line; blank lines are passed over;
    - `.json`: a list of objects, or an object a line;
    - `.csv` and `.tsv` (no quoting): a header, then a row of as many cells a record.

    Raises DataError with the line at a broken record, and where there is none.
    """
    match layout_of(name):
        case ".jsonl":
            records = _json_lines(name)
        case ".json":
            records = _json_list_or_lines(name)
        case ".csv":
            records = _rows(name, tabs=False)
        case ".tsv":
            records = _rows(name, tabs=True)
        case _:
            raise DataError(
                f"{name} is none of {' '.join(RECORD_SUFFIXES)} (each also compressed), which "
                "say how its records are laid out. Rename it, or convert it to one of them."
            )
    empty = True
    for record in records:
        empty = False
        yield record
    if empty:
        raise DataError(f"{name} holds no record.")


def parse_json(text: str, where: str, name: str = "") -> Any:
    """The value that a JSON text stands for.

    Raises DataError where it is broken, with the line where `name`, a file read whole, is given,
    and where it holds half a surrogate pair, which no tokenizer can read.
    """
    try:
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} holds half a surrogate pair, which is no text.") from error
    except json.JSONDecodeError as error:
        place = f"{name}, line {error.lineno}" if name else where
        raise DataError(
            f"{place} is not valid JSON: {error.msg} at character {error.colno}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not valid JSON: {error}.") from error
    return value


def json_type(value: object) -> str:
    """What a JSON value is, in words."""
    if isinstance(value, bool):
        return "true or false"
    known = {str: "a text", dict: "an object", list: "a list", type(None): "null"}
    return known.get(type(value), "a number")


def as_record(value: object, where: str) -> Record:
    """A JSON object as a record. Raises DataError where it is something else."""
    if not isinstance(value, dict):
        raise DataError(f"{where} is {json_type(value)}, not an object with named fields.")
    return Record(value, where)


def _json_lines(name: str) -> Iterator[Record]:
    for number, line in numbered_lines(name):
        if line and not line.isspace():
            where = f"{name}, line {number}"
            yield as_record(parse_json(line, where), where)


def _json_list_or_lines(name: str) -> Iterator[Record]:
    text = file_text(name)
    if not text.lstrip().startswith("["):
        yield from _json_lines(name)
        return
    for number, value in enumerate(parse_json(text, name, name), start=1):
        where = f"{name}, item {number}"
        yield as_record(value, where)


def _rows(name: str, *, tabs: bool) -> Iterator[Record]:
    """The rows of a table under its header."""
    header: list[str] | None = None
    for number, cells in table_rows(name, tabs=tabs):
        where = f"{name}, line {number}"
        if header is None:
            header = [cell.strip() for cell in cells]
            twice = sorted({cell for cell in header if header.count(cell) > 1})
            if twice:
                raise DataError(f'{where}: the header has the column "{twice[0]}" twice.')
        elif len(cells) != len(header):
            raise DataError(
                f"{where} has {len(cells)} cells, the header has {len(header)} "
                f"({', '.join(header)}). "
                + ("Is there a tab too many?" if tabs else "Is a text with a comma not quoted?")
            )
        else:
            yield Record(dict(zip(header, cells)), where, of_table=True)


def table_rows(name: str, *, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """The cells of every row with the line it begins in; tab-separated files have no quoting."""
    if tabs:
        for number, line in numbered_lines(name):
            if line and not line.isspace():
                yield number, line.split("\t")
        return
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader((line + "\n" for _, line in numbered_lines(name)), strict=True)
    first = 1
    try:
        for cells in reader:
            if any(cells):
                yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{name}, line {first} begins a row that is not valid CSV: {error}. "
            "Is there a quotation mark that is never closed?"
        ) from error


def find_field(
    record: Record, what: str, usual: Sequence[str], option: str, given: str | None = None
) -> str:
    """The field of a record that holds `what`: the one `given`, else one of a usual name.

    Raises DataError where there is none, with the fields there are and the option that names one.
    """
    if given is not None:
        field_value(record, given, option)
        return given
    found = usual_field(record, usual)
    if found is None:
        raise no_such_field(record, what, usual, (option,))
    return found


def usual_field(record: Record, usual: Iterable[str]) -> str | None:
    """The first of the usual names that the record has, in whatever case; None without one."""
    lowered = {name.lower(): name for name in reversed(record.fields)}
    return next((lowered[name] for name in usual if name in lowered), None)


def usual_pair(record: Record, usual: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The first usual pair of names of which the record has both."""
    for pair in usual:
        first, second = (usual_field(record, [name]) for name in pair)
        if first is not None and second is not None:
            return first, second
    return None


def no_such_field(
    record: Record, what: str, usual: Iterable[str], options: Sequence[str]
) -> DataError:
    """The error of a record in which no usual name was found."""
    return DataError(
        f"{record.where} has no {what}: its fields are {_listed(record)}. Known names are "
        f"{', '.join(usual)}; name {'others' if len(options) > 1 else 'another'} with "
        f"{' and '.join(options)}."
    )


def field_value(record: Record, name: str, option: str = "") -> Any:
    """The value of a field; "translation.en" is a field inside one.

    Raises DataError where the record has no such field.
    """
    if name in record.fields:
        return record.fields[name]
    if not has_field(record, name):
        end = f" Name another with {option}." if option else ""
        raise DataError(
            f'{record.where} has no field "{name}"; it has {_listed(record)}.'
            f"{did_you_mean(name, record.fields)}{end}"
        )
    value: Any = record.fields
    for part in name.split("."):
        value = value[part]
    return value


def has_field(record: Record, name: str) -> bool:
    """Whether `field_value` finds the field."""
    value: Any = record.fields
    for part in [name] if name in record.fields else name.split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def field_text(record: Record, name: str, option: str = "") -> str:
    """The text of a field. Raises DataError where it is missing, blank or something else."""
    return as_text(field_value(record, name, option), f'The field "{name}" of {record.where}')


def as_text(value: object, what: str) -> str:
    """The value if it is a text that is not blank; else DataError begins with `what`."""
    if not isinstance(value, str):
        raise DataError(f"{what} is {json_type(value)}, not a text.")
    if not value or value.isspace():
        raise DataError(f"{what} is blank. Fill it in, or remove the example.")
    return value


def _listed(record: Record) -> str:
    """The fields of a record in words; an object's own fields with a dot."""
    names = []
    for name, value in record.fields.items():
        inner = [f"{name}.{part}" for part in value] if isinstance(value, dict) else []
        names += inner or [name]
    return ", ".join(names) or "none"
