"""What labels are: one class, several classes or a number; and the order of their names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from trivium.data.labelled.records import json_type
from trivium.errors import DataError, did_you_mean

LabelKind = Literal["classes", "multi-label", "numbers"]
Label = str | float | tuple[str, ...]


class Cell(str):
    """A label from a table, where a number cannot be told from a text."""

    __slots__ = ()


def known_kind(kind: str) -> None:
    """Raise DataError unless `kind` is a kind of label."""
    kinds = get_args(LabelKind)
    if kind not in kinds:
        raise DataError(
            f'"{kind}" is no kind of label; known are {", ".join(kinds)}.'
            f"{did_you_mean(kind, kinds)}"
        )


def find_kind(labels: Sequence[tuple[object, str]]) -> LabelKind:
    """The kind of some raw labels, each with its place.

    Lists are several classes. Numbers of which one is not whole are numbers; whole ones, texts
    and true or false are classes.
    Raises DataError with the places where lists or broken numbers stand among other labels.
    """
    lists = [isinstance(label, list) for label, _ in labels]
    if any(lists):
        if not all(lists):
            raise _mixed(labels[lists.index(True)], labels[lists.index(False)])
        return "multi-label"
    numbers = [_number(label) for label, _ in labels]
    broken = [n for n, number in enumerate(numbers) if number is not None and number % 1]
    if not broken:
        return "classes"
    if None not in numbers:
        return "numbers"
    # A class of a table may be called 2.1 beside one called beta; in JSON it would be a text.
    plain = [n for n in broken if not isinstance(labels[n][0], str)]
    if plain:
        raise _mixed(labels[plain[0]], labels[numbers.index(None)])
    return "classes"


def _mixed(one: tuple[object, str], other: tuple[object, str]) -> DataError:
    return DataError(
        f"{other[1]} has {json_type(other[0])} as label while {one[1]} has {json_type(one[0])}. "
        "All labels are classes, lists of classes, or numbers."
    )


def _number(label: object) -> float | None:
    """The number that a raw label is; None where it is none."""
    if isinstance(label, bool) or (isinstance(label, str) and not isinstance(label, Cell)):
        return None
    if isinstance(label, int | float):
        return label
    if not isinstance(label, Cell) or "_" in label:
        return None
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def as_label(label: object, kind: LabelKind, where: str, separator: str = ",") -> Label:
    """A raw label as its kind wants it: a name, a tuple of names or a float.

    `separator` parts several classes in a cell of a table.
    Raises DataError where the label is of another kind.
    """
    if kind == "numbers":
        return _as_number(label, where)
    if kind == "classes":
        return _class_name(label, where)
    if isinstance(label, Cell):
        label = [part for part in label.split(separator) if part.strip()]
    names = [_class_name(part, where) for part in (label if isinstance(label, list) else [label])]
    if len(set(names)) < len(names) or (
        isinstance(label, list) and any(isinstance(part, float) for part in label)
    ):
        raise DataError(
            f"The labels of {where} are {label}: write the name of every class that applies, "
            "each once, not a 0 or 1 for each class."
        )
    return tuple(names)


def _as_number(label: object, where: str) -> float:
    # A text that is a number will do where the user has asked for numbers.
    number = _number(Cell(label) if isinstance(label, str) else label)
    if number is None or not math.isfinite(number):
        shown = f'"{label}"' if isinstance(label, str) else str(label)
        raise DataError(f"The label of {where} is {shown}, not a number.")
    return float(number)


def _class_name(label: object, where: str) -> str:
    if isinstance(label, str):
        if not label.strip():
            raise DataError(f"The label of {where} is blank. Fill it in, or remove the example.")
        return label.strip()
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, int):
        return str(label)
    if isinstance(label, float) and math.isfinite(label):
        return str(int(label)) if label.is_integer() else str(label)
    raise DataError(
        f"The label of {where} is {'not finite' if isinstance(label, float) else json_type(label)}"
        ", not the name of a class."
    )


def natural_order(names: Iterable[str]) -> tuple[str, ...]:
    """The different names, numbers in them by their value.

    >>> natural_order(["b", "a10", "a9", "b"]), natural_order(["10", "9", "-1"])
    (('a9', 'a10', 'b'), ('-1', '9', '10'))
    """
    different = set(names)
    numbers = {name: _number(Cell(name)) for name in different}
    if None not in numbers.values():
        return tuple(sorted(different, key=lambda name: (numbers[name] or 0.0, name)))
    return tuple(sorted(different, key=lambda name: (_parts(name), name)))


def _parts(name: str) -> list[str | int]:
    """Texts and numbers in turn, the first a text."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if n % 2 else part for n, part in enumerate(parts)]
