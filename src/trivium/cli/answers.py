"""What the verbs that use a model share: one line in, one answer out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import typer

Item = TypeVar("Item")

# Texts that go through a model together; answers of a pipe come as often.
BATCH = 256


def in_batches(items: Iterator[Item], size: int = BATCH) -> Iterator[list[Item]]:
    """Items in lists of at most `size`."""
    while batch := list(islice(items, size)):
        yield batch


def say(record: dict[str, Any], plain: str, *, as_json: bool) -> None:
    """Print one answer, as a JSON object or as a line."""
    typer.echo(json.dumps(record, ensure_ascii=False) if as_json else plain)


def columns(*cells: str) -> str:
    """Cells parted by tabs, their own line breaks and tabs made spaces."""
    return "\t".join(" ".join(cell.split()) for cell in cells)


def pair_of(text: str, pair: str | None, lines: bool) -> tuple[str, str | None]:
    """The texts of an argument, or of a line of standard input whose tab parts a pair."""
    if pair is None and lines and "\t" in text:
        first, _, second = text.partition("\t")
        return first, second
    return text, pair


def listed(values: Sequence[float]) -> list[float]:
    """Numbers short enough to read: six digits."""
    return [float(f"{value:.6g}") for value in values]
