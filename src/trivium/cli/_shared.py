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
from trivium.cli._options import drop_unset
from trivium.data.python_data import PathList
from trivium.errors import DataError, shorten
from trivium.interrupts import exit_on_interrupt
from trivium.text import Tokenizer
from trivium.text.symbols import MASK_PATTERN

Item = TypeVar("Item")

_SHOWN_UNKNOWN = 20
BATCH_SIZE = 256
"""The number of texts per model call. Results of piped input are printed after each call."""


def load(model: str, **options: Any) -> trivium.LanguageModel:
    """Load a language model with `trivium.load`. Imports torch, which takes seconds."""
    with exit_on_interrupt():
        load_model = trivium.load
    return load_model(model, **options)


def check_characters(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the texts unchanged, and warn about characters that the tokenizer does not know.

    Each unknown character is reported only once. If the tokenizer splits text into whole words,
    unknown words are reported instead. Mask tokens in the texts are ignored.
    """
    checked: set[str] = set()
    unk_id = None if tokenizer.unk_id == tokenizer.eos_id else tokenizer.unk_id  # GPT-2 has one
    for text in texts:
        plain = MASK_PATTERN.sub("", text)
        encoding = tokenizer.encode(plain, add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets)
        parts = [plain[start:end] for token_id, (start, end) in spans if token_id == unk_id]
        if tokenizer.kind != "whitespace":
            parts = "".join("".join(parts).split())
        new = sorted({*parts} - checked)
        checked.update(new)
        encoded = tokenizer.encode_ids_batch(new)
        unknown = [part for part, ids in zip(new, encoded) if unk_id in ids]
        if unknown:
            more = ", ..." if len(unknown) > _SHOWN_UNKNOWN else ""
            warnings.warn(
                f"not in the vocabulary: {', '.join(unknown[:_SHOWN_UNKNOWN])}{more}: "
                "the model cannot distinguish these.",
                stacklevel=2,
            )
        yield text


def read_texts(
    texts: Sequence[str] | None, *, keep_blank: bool = False, file_command: str = ""
) -> Iterator[str]:
    """Yield the texts from the command line, or the lines of standard input if there are none.

    Args:
        texts: the texts from the command line.
        keep_blank: whether to include blank lines of standard input.
        file_command: a command that reads files, with FILE in place of the file name. The error
            message suggests this command if a text is the name of a file.

    Raises:
        DataError: a text or standard input is not UTF-8, or a text is the name of a file.
    """
    for text in texts or ():
        if os.path.isfile(text):
            name = shlex.quote(text)
            command = file_command.replace("FILE", name)
            other = f", or for a table with all its columns: `{command}`" if command else ""
            raise DataError(
                f"{shorten(text)} is the name of a file, not a text. To read its lines: "
                f"< {name}{other}."
            )
    for text in texts or ():
        try:  # if the locale is not UTF-8, Python decodes bytes of arguments to surrogates
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


def ask_for_texts(greeting: str) -> Iterator[str]:
    """Yield the lines that the user types at a prompt, until an empty line or Ctrl-D.

    Args:
        greeting: a line that is printed to standard error before the first prompt.

    Raises:
        DataError: a line is not UTF-8.
    """
    typer.echo(greeting, err=True)
    while True:
        shown = "> "
        if not sys.stdout.isatty():  # `input` would write the prompt into the output
            typer.echo(shown, nl=False, err=True)
            shown = ""
        try:
            line = input(shown).encode("utf-8", "surrogateescape").decode("utf-8")
        except EOFError:
            typer.echo(err=True)  # the cursor is after the prompt
            return
        except UnicodeError:
            raise DataError("what was typed is not UTF-8.") from None
        if not line.strip():
            return
        yield line


def batch_items(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items of an iterable in lists of at most `BATCH_SIZE` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH_SIZE)):
        yield batch


def read_text_batches(
    texts: Sequence[str] | None, tokenizer: Tokenizer, *, file_command: str = ""
) -> Iterator[list[str]]:
    """Yield batches of the texts, or of the lines of standard input if no texts are given.

    Warns about characters that are unknown to the tokenizer. If a text is the name of a file, the
    error message suggests `file_command`, with FILE replaced with the file name.
    """
    given = read_texts(texts, keep_blank=True, file_command=file_command)
    return batch_items(check_characters(given, tokenizer))


def print_json(value: Any) -> None:
    """Print a value as one line of JSON. Dataclasses are printed as objects."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=dataclasses.asdict))


def print_result(record: dict[str, Any], line: str, *, as_json: bool) -> None:
    """Print one result: the text `line`, or with `as_json` the dict `record` as JSON."""
    print_json(record) if as_json else typer.echo(line)


def join_cells(*cells: str) -> str:
    """Join the cells of a table row with tabs.

    Replaces tabs and line breaks inside cells with spaces.
    """
    return "\t".join(" ".join(cell.split()) for cell in cells)


def parse_validation(values: list[str]) -> float | PathList:
    """Parse the value of `--validation`.

    A single number is a fraction; anything else is a list of paths.
    """
    try:
        (value,) = values
        return float(value)
    except ValueError:
        return PathList(values)


def format_overrides(
    data_options: Mapping[str, Any], overrides: Sequence[str] | None, *, no_verify: bool
) -> list[str]:
    """Return the recipe overrides of a run in the KEY=VALUE form of `--set`.

    Args:
        data_options: values for keys of the recipe's `[data]` section; None if the user did not set
            the key.
        overrides: the values of `--set`, which take precedence over `data_options`.
        no_verify: whether to skip the verification of checksums.
    """
    keys = [f"data.{key}={json.dumps(value)}" for key, value in drop_unset(data_options).items()]
    return [*keys, *(overrides or ()), *(["train.verify=false"] if no_verify else [])]


def choose_run_folder(
    name: str | None, out: str | None, advice: str, *, resume: bool | str, overwrite: bool
) -> str:
    """Return the run folder or its URL: `out` if given, otherwise `runs/NAME`.

    Args:
        name: the preset, recipe or task on the command line.
        out: the value of `--out`.
        advice: the error message if `name` is missing and `--resume` is not given.
        resume: the value of `--resume`, or "auto" for `--auto-resume`.
        overwrite: the value of `--overwrite`.

    Raises:
        UsageError: the name is missing, or options contradict each other.
    """
    if name is None and resume is not True:
        raise UsageError(advice)
    if resume and overwrite:
        raise UsageError(
            "--resume continues a run and --overwrite replaces it: give only one of them."
        )
    if out is None and name is None:
        raise UsageError("--resume needs the folder of the run: give --out RUN.")
    return out or str(Path("runs") / Path(name or "").stem)


def split_pair(line: str) -> tuple[str, str | None]:
    """Split a line into two texts at its first tab. The second text is None if there is no tab."""
    first, tab, second = line.partition("\t")
    return first, second if tab else None


def shorten_count(number: float) -> str:
    """Format a large count with a unit. For example, 124439808 becomes "124.4M"."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{int(number)}"
