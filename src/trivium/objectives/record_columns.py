"""Which column of a labelled file holds what: the one a recipe names, or one of a usual name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from trivium.data.records import Record
from trivium.errors import DataError, did_you_mean


def find_column(
    record: Record, what: str, key: str, name: str | None, usual: tuple[str, ...]
) -> str:
    """The column with `what`: `name` if the recipe's key `key` says so, else a usual name.

    Raises:
        DataError: there is none; the message lists the columns and the key that names one.
    """
    if name is not None:
        column_value(record, name, key)
        return name
    match = usual_column(tuple(record), usual)
    if match is None:
        raise no_column(record, what, usual, key)
    return match


@lru_cache(maxsize=256)
def usual_column(columns: tuple[str, ...], usual: tuple[str, ...]) -> str | None:
    """The first usual name among the columns, in any case; None without one.

    >>> usual_column(("Id", "Text"), ("sentence", "text"))
    'Text'
    """
    lowered = {name.lower(): name for name in reversed(columns)}
    return next((lowered[name] for name in usual if name in lowered), None)


@lru_cache(maxsize=256)
def usual_pair(
    columns: tuple[str, ...], usual: tuple[tuple[str, str], ...]
) -> tuple[str, str] | None:
    """The first pair of usual names of which both are columns."""
    for pair in usual:
        first, second = (usual_column(columns, (name,)) for name in pair)
        if first is not None and second is not None:
            return first, second
    return None


def no_column(record: Record, what: str, usual: Sequence[str], *keys: str) -> DataError:
    """The error of a record in which no usual name is a column."""
    options = " ".join(f"--set objective.{key}=NAME" for key in keys)
    return DataError(
        f"{record.where} has no {what}: its columns are {_columns(record)}. Known names are "
        f"{', '.join(usual)}; name another with {options}. A table needs a header line."
    )


def column_value(record: Record, name: str, key: str = "") -> Any:
    """The value of a column; "translation.en" is a field of an object in one.

    Raises:
        DataError: the record has no such column.
    """
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            advice = f" Name another with --set objective.{key}=NAME." if key else ""
            raise DataError(
                f'{record.where} has no column "{name}"; it has {_columns(record)}.'
                f"{did_you_mean(name, record)}{advice}"
            )
        value = value[part]
    return value


def column_text(record: Record, name: str, key: str = "") -> str:
    """The text in a column. Raises DataError where it is missing, blank or something else."""
    return as_text(column_value(record, name, key), f'The column "{name}" of {record.where}')


def as_text(value: object, what: str) -> str:
    """The value if it is text and not blank; else DataError, which begins with `what`."""
    if not isinstance(value, str):
        raise DataError(f"{what} is {json_type(value)}, not text.")
    if not value or value.isspace():
        raise DataError(f"{what} is blank. Fill it in, or remove the example.")
    return value


def json_type(value: object) -> str:
    """What a JSON value is, for messages.

    >>> json_type([1]), json_type(None)
    ('a list', 'null')
    """
    names = {bool: "true or false", str: "text", dict: "an object", list: "a list"}
    return "null" if value is None else names.get(type(value), "a number")


def _columns(record: Record) -> str:
    """The columns in words; those of an object with a dot."""
    names = []
    for name, value in record.items():
        inner = [f"{name}.{part}" for part in value] if isinstance(value, Mapping) else []
        names += inner or [name]
    return ", ".join(names) or "none"
