"""Data from Python: texts, records, data sets and data frames, which a run stores as JSON lines."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from trivium.data.records import class_names, with_class_names
from trivium.data.sources import PYTHON, Paths, path_names
from trivium.errors import DataError
from trivium.files import STDIN, replace_file
from trivium.remote import is_remote

Data = Paths | Iterable[Any]
"""Paths, or the data itself: texts, dictionaries, a `datasets.Dataset` or a pandas DataFrame."""

_LONGEST_PATH = 4096


class PathList(tuple[str, ...]):
    """Strings that are paths, even if they do not look like paths."""


def named_data(data: Data | None, name: str) -> tuple[PathList, Any]:
    """Return the paths of data, with None; or the name of a file, with the data to store there.

    One string is a path. A list of strings is a list of paths if every string exists as a path or
    looks like one (without spaces, and with a slash, a suffix or a wildcard). Otherwise it is a
    list of texts.

    Raises DataError if a list has names of files among its texts.
    """
    if data is None or isinstance(data, str | os.PathLike | PathList):
        return PathList(path_names(data or ())), None
    if isinstance(data, list | tuple) and all(isinstance(one, str | os.PathLike) for one in data):
        files = [number for number, one in enumerate(data) if _is_path(one)]
        if all(_is_path(one) or _looks_like_path(one) for one in data):
            return PathList(path_names(data)), None
        if files:
            raise DataError(
                f'{name} {files[0]} is "{data[files[0]]}", the name of a file, but not all are '
                'paths. Give texts as dictionaries, such as {"text": "..."}, or paths that exist.'
            )
    return PathList((f"{PYTHON}{name}.jsonl",)), data


def write_data(data: Any, file: Path, text_field: str) -> None:
    """Write data from Python as JSON lines. A string becomes a record with a column `text_field`.

    Raises DataError if the data is empty, or if an element is neither a string nor a dictionary.
    """
    name, count = file.stem, 0
    file.parent.mkdir(exist_ok=True)
    with replace_file(file) as lines:
        for row in _rows(data, name):
            record = {text_field: row} if isinstance(row, str) else row
            if not isinstance(record, Mapping):
                raise DataError(
                    f"{name} {count} is of type {type(row).__name__}: give strings or dictionaries."
                )
            try:
                line = json.dumps({str(key): one for key, one in record.items()}, default=_plain)
            except (TypeError, ValueError) as error:
                raise DataError(f"{name} {count} cannot be stored as JSON: {error}.") from None
            lines.write(line.encode() + b"\n")
            count += 1
        if not count:
            raise DataError(f"{name} has no element.")


def _is_path(one: str | os.PathLike[str]) -> bool:
    """Return whether a value is certainly a path, or another name of data such as hf:NAME."""
    if not isinstance(one, str) or one == STDIN or one.startswith("hf:") or is_remote(one):
        return True
    return len(one) < _LONGEST_PATH and os.path.exists(one)


def _looks_like_path(one: str | os.PathLike[str]) -> bool:
    name = os.fspath(one)
    if len(name) >= _LONGEST_PATH or name.split() != [name]:
        return False
    return "/" in name or os.sep in name or Path(name).suffix != "" or glob.has_magic(name)


def _rows(data: Any, name: str) -> Iterator[Any]:
    """Yield the rows of a data frame, an iterable, or a data set, with the names of its labels."""
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas, where missing values are NaN
        yield from data.astype(object).where(data.notna(), None).to_dict("records")
        return
    if isinstance(data, Mapping):
        raise DataError(
            f"{name} is a dictionary of {', '.join(map(str, data))}: give one of its parts, such "
            f'as data["{next(iter(data), "train")}"], or a list of dictionaries.'
        )
    if not isinstance(data, Iterable):
        raise DataError(f"{name} is of type {type(data).__name__}: give paths, or an iterable.")
    features: Any = getattr(data, "features", None)
    if not hasattr(features, "to_dict"):  # not of `datasets`
        yield from data
        return
    names, rows = class_names(features.to_dict()), cast(Any, data)
    if (getattr(rows, "format", None) or {}).get("type") != "custom":
        rows = rows.with_format(None)  # not tensors, arrays or tables
    for row in rows:
        yield {column: with_class_names(one, column, names) for column, one in row.items()}


def _plain(value: Any) -> Any:
    """Return a number, an array or a date of another library as a value that JSON has."""
    for method in ("tolist", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"it has a value of type {type(value).__name__}")
