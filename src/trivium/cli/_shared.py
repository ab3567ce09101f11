"""Input and output that several commands share."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import typer

import trivium
from trivium.cli import UsageError
from trivium.cli._options import only_set
from trivium.data.python_data import PathList
from trivium.errors import DataError, shorten
from trivium.interrupts import exit_on_interrupt
from trivium.text import Tokenizer
from trivium.text.symbols import MASK_PATTERN

Item = TypeVar("Item")

_SHOWN_UNKNOWN = 20
BATCH_SIZE = 256
"""Texts that one call of a model receives; output of a pipe appears as often."""


def load(model: str, **options: Any) -> trivium.LanguageModel:
    """Load a model: see `trivium.load`, which is imported here because torch takes seconds."""
    with exit_on_interrupt():
        load_model = trivium.load
    return load_model(model, **options)


def known_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[str]:
    """The texts; a warning names the characters that the tokenizer does not know, each once.

    Of a tokenizer of whole words it names words. Masks as they are written in a text are none.
    """
    checked: set[str] = set()
    unk_id = None if tokenizer.unk_id == tokenizer.eos_id else tokenizer.unk_id  # GPT-2 has one
    for text in texts:
        plain = MASK_PATTERN.sub("", text)
        encoding = tokenizer.encode(plain, add_special_tokens=False)
        parts = [plain[a:b] for one, (a, b) in zip(encoding.ids, encoding.offsets) if one == unk_id]
        if tokenizer.kind != "whitespace":
            parts = "".join("".join(parts).split())
        new = sorted({*parts} - checked)
        checked.update(new)
        encoded = tokenizer.encode_ids_batch(new)
        unknown = [part for part, ids in zip(new, encoded) if unk_id in ids]
        if unknown:
            more = ", ..." if len(unknown) > _SHOWN_UNKNOWN else ""
            warnings.warn(
                f"the vocabulary does not know {', '.join(unknown[:_SHOWN_UNKNOWN])}{more}: "
                "the model cannot tell these apart.",
                stacklevel=2,
            )
        yield text


def read_texts(
    texts: Sequence[str] | None, *, keep_blank: bool = False, for_files: str = ""
) -> Iterator[str]:
    """The arguments, or else the lines of standard input; blank ones only with `keep_blank`.

    `for_files` is a command that reads files, with FILE in place of the name.

    Raises:
        DataError: a text or standard input is not UTF-8, or a text is the name of a file.
    """
    for text in texts or ():
        if os.path.isfile(text):
            name = shlex.quote(text)
            command = for_files.replace("FILE", name)
            other = f", or for a table with all its columns: `{command}`" if command else ""
            raise DataError(
                f"{shorten(text)} is the name of a file, not a text. To read its lines: "
                f"< {name}{other}."
            )
    for text in texts or ():
        try:  # where the locale is not UTF-8, Python has bytes of an argument as surrogates
            yield text.encode("utf-8", "surrogateescape").decode("utf-8")
        except UnicodeError:
            raise DataError(f"the text {shorten(text)!a} is not UTF-8.") from None
    if texts:
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input, line {number}: not UTF-8 (byte {error.start + 1} of the line)."
            ) from None
        if keep_blank or text.strip():
            yield text


def batched(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Lists of at most `BATCH_SIZE` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH_SIZE)):
        yield batch


def text_batches(
    texts: Sequence[str] | None, tokenizer: Tokenizer, *, for_files: str = ""
) -> Iterator[list[str]]:
    """The arguments, or the lines of standard input, in batches; warns of unknown characters."""
    given = read_texts(texts, keep_blank=True, for_files=for_files)
    return batched(known_texts(given, tokenizer))


def print_json(value: Any) -> None:
    """Print a value as one line of JSON, dataclasses in it as objects."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=dataclasses.asdict))


def show(record: dict[str, Any], line: str, *, as_json: bool) -> None:
    """Print one result: the record as a JSON object, or the line."""
    print_json(record) if as_json else typer.echo(line)


def tab_separated(*cells: str) -> str:
    """Cells with tabs between them; their own line breaks and tabs become spaces."""
    return "\t".join(" ".join(cell.split()) for cell in cells)


def fraction_or_paths(values: list[str]) -> float | PathList:
    """Return a fraction where the only value is a number, else paths."""
    try:
        (value,) = values
        return float(value)
    except ValueError:
        return PathList(values)


def recipe_changes(
    reading: Mapping[str, Any], changes: Sequence[str] | None, *, no_verify: bool
) -> list[str]:
    """Return the options of a run that change its recipe, as `--set` takes them.

    Args:
        reading: keys of `[data]`; those that are None are not set.
        changes: those of `--set`, which override the others.
        no_verify: do not verify checksums.
    """
    keys = [f"data.{key}={json.dumps(one)}" for key, one in only_set(reading).items()]
    return [*keys, *(changes or ()), *(["train.verify=false"] if no_verify else [])]


def run_folder(
    name: str | None, out: Path | None, advice: str, *, resume: bool | str, overwrite: bool
) -> Path:
    """The folder of a run: `out`, or that of its name.

    Raises UsageError for a run without a name (which has the advice), and for options that
    contradict each other.
    """
    if name is None and resume is not True:
        raise UsageError(advice)
    if resume and overwrite:
        raise UsageError("--resume continues a run and --overwrite replaces it: give one of them.")
    if out is None and name is None:
        raise UsageError("--resume needs the run: give --out RUN.")
    return out or Path("runs") / Path(name or "").stem


def split_pair(line: str) -> tuple[str, str | None]:
    """The two texts of a line with a tab between them, or the line alone."""
    first, tab, second = line.partition("\t")
    return first, second if tab else None


def short_count(number: float) -> str:
    """124439808 -> "124.4M"."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{int(number)}"
