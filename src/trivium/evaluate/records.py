"""Records of evaluation files, with the place of each for messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.data.formats import decoded_lines
from trivium.errors import DataError, did_you_mean


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a file, and where it stands: "FILE, line N"."""

    fields: Mapping[str, Any]
    where: str

    def text(self, name: str) -> str:
        """A field that must be a text; numbers are written out.

        Raises:
            DataError: it is missing or nothing of the kind.
        """
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise DataError(
                f"{self.where}: the field {name!r} is {_kind(value)}, but must be a text."
            )
        return str(value)

    def value(self, name: str) -> Any:
        """A field that must be there.

        Raises:
            DataError: it is missing or null.
        """
        if self.fields.get(name) is None:
            known = ", ".join(self.fields) or "nothing"
            raise DataError(
                f"{self.where}: there is no field {name!r}; it has {known}."
                f"{did_you_mean(name, self.fields)}"
            )
        return self.fields[name]

    def index(self, name: str, count: int) -> int:
        """A field that says which of `count` options is right, counted from 0.

        Raises:
            DataError: it is missing or no such number.
        """
        value = self.value(name)
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
            raise DataError(
                f"{self.where}: the field {name!r} is {value!r}, but must be 0 to {count - 1}."
            )
        return value


def read_records(path: str | Path) -> Iterator[Record]:
    """The objects of a JSON lines file, also compressed (.gz, .xz, .zst); blank lines are no lines.

    Raises:
        DataError: the file cannot be read, or a line is no JSON object.
    """
    for where, line in numbered_lines(path):
        try:
            found = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON: {error}.") from None
        if not isinstance(found, dict):
            raise DataError(f"{where}: {_kind(found)}, but must be an object with fields.")
        yield Record(found, where)


def numbered_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Where each line stands that is not blank, and the line.

    Raises:
        DataError: there is no such file, or it is no UTF-8 text.
    """
    if not Path(path).is_file():
        raise DataError(f"{path}: there is no such file.")
    for number, line in enumerate(decoded_lines(str(path), "strict", None), start=1):
        if line and not line.isspace():
            yield f"{path}, line {number}", line


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
