"""Data passed as Python objects: texts, records, datasets or data frames.

The data is stored as a JSON lines file.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from trivium.data.records import extract_class_names, replace_class_indices
from trivium.data.sources import PYTHON, Paths, list_paths
from trivium.errors import DataError
from trivium.files import STDIN, replace_file
from trivium.remote import is_remote

Data = Paths | Iterable[Any]
"""Paths; or data as texts, as dictionaries, as a `datasets.Dataset` or as a pandas DataFrame."""

_MAX_PATH_LENGTH = 4096


class PathList(tuple[str, ...]):
    """A tuple of paths. `resolve_data` never treats its strings as texts."""


def resolve_data(data: Data | None, name: str) -> tuple[PathList, Any]:
    """Decide whether `data` is a list of paths or the data itself.

    Returns (paths, None) if `data` is a list of paths. Otherwise, returns (file name, data). The
    data will be stored in a file of this name, which is derived from `name`.

    A single string is a path. A list of strings is a list of paths if every string is an existing
    path or looks like a path: it has no spaces, and has a slash, a suffix or a wildcard. All other
    lists of strings are texts.

    Raises DataError if a list contains both existing paths and texts.
    """
    if data is None or isinstance(data, str | os.PathLike | PathList):
        return PathList(list_paths(data or ())), None
    if isinstance(data, list | tuple) and all(isinstance(row, str | os.PathLike) for row in data):
        files = [number for number, row in enumerate(data) if _is_path(row)]
        if all(_is_path(row) or _looks_like_path(row) for row in data):
            return PathList(list_paths(data)), None
        if files:
            raise DataError(
                f'{name} {files[0]} is "{data[files[0]]}", the name of a file, but not all are '
                'paths. Give texts as dictionaries, such as {"text": "..."}, or paths that exist.'
            )
    return PathList((f"{PYTHON}{name}.jsonl",)), data


def write_data(data: Any, path: Path, text_field: str) -> None:
    """Write Python objects to a JSON lines file.

    A string becomes a record with a single column, named `text_field`.

    Raises DataError if the data is empty, or if an element is not a string or a dictionary, or
    cannot be stored as JSON.
    """
    name, count = path.stem, 0
    path.parent.mkdir(exist_ok=True)
    with replace_file(path) as lines:
        for row in _iterate_rows(data, name):
            record = {text_field: row} if isinstance(row, str) else row
            if not isinstance(record, Mapping):
                raise DataError(
                    f"{name} {count} is of type {type(row).__name__}: give strings or dictionaries."
                )
            try:
                line = json.dumps({str(k): v for k, v in record.items()}, default=_to_json_value)
            except (TypeError, ValueError) as error:
                raise DataError(f"{name} {count} cannot be stored as JSON: {error}.") from None
            lines.write(line.encode() + b"\n")
            count += 1
        if not count:
            raise DataError(f"{name} has no element.")


def _is_path(path: str | os.PathLike[str]) -> bool:
    """Return whether a value is certainly a path.

    Such a value is an existing file or folder, a remote path, hf:NAME, "-" or a path object.
    """
    if not isinstance(path, str) or path == STDIN or path.startswith("hf:") or is_remote(path):
        return True
    return len(path) < _MAX_PATH_LENGTH and os.path.exists(path)


def _looks_like_path(path: str | os.PathLike[str]) -> bool:
    """Return whether a string looks like a path.

    Such a string has no spaces, and has a slash, a suffix or a wildcard.
    """
    name = os.fspath(path)
    if len(name) >= _MAX_PATH_LENGTH or name.split() != [name]:
        return False
    return "/" in name or os.sep in name or Path(name).suffix != "" or glob.has_magic(name)


def _iterate_rows(data: Any, name: str) -> Iterator[Any]:
    """Yield the rows of a data frame, a dataset or another iterable.

    In a `datasets.Dataset`, class indices are replaced with class names. `name` is the name of the
    data for error messages.

    Raises DataError if the data is a dictionary, or is not iterable.
    """
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas marks missing values by NaN
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
    if not hasattr(features, "to_dict"):  # not a `datasets.Dataset`
        yield from data
        return
    names, rows = extract_class_names(features.to_dict()), cast(Any, data)
    if (getattr(rows, "format", None) or {}).get("type") != "custom":
        rows = rows.with_format(None)  # not tensors, arrays or tables
    for row in rows:
        yield {column: replace_class_indices(one, column, names) for column, one in row.items()}


def _to_json_value(value: Any) -> Any:
    """Convert a NumPy number, an array, a date or a decimal to a JSON-serializable value."""
    for method in ("tolist", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"it has a value of type {type(value).__name__}")
