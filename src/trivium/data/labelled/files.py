"""Files of labelled examples: which ones some paths stand for, and their text with exact places.

A file is read whole: its examples are held in memory anyway.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trivium.data.formats import open_bytes
from trivium.data.sources import COMPRESSIONS, STDIN, list_sources
from trivium.errors import DataError

Paths = Sequence[str | Path] | str | Path


def as_paths(paths: Paths) -> list[str]:
    """The paths as a list of strings. Raises DataError where there is none."""
    found = [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]
    if not found:
        raise DataError("No examples were given. Name a file, a folder or a glob.")
    return found


def example_files(paths: Paths, suffixes: Sequence[str]) -> list[str]:
    """The files that files, globs and folders stand for, each once; folders in sorted order.

    From folders come the files of the given suffixes, also compressed; hidden ones are left out.
    Raises DataError where a path does not exist or has nothing to read.
    """
    found: dict[str, str] = {}
    for path in as_paths(paths):
        if path == STDIN or path.startswith("hf:"):
            raise DataError(f'Labelled examples are read from files, not from "{path}".')
        if os.path.isdir(path):
            names = files_under(path, suffixes)
            if not names:
                raise DataError(
                    f"The folder {path} has no file of examples. Known are {' '.join(suffixes)}, "
                    f"each also {' '.join(COMPRESSIONS)}."
                )
        else:
            names = [source.name for source in list_sources(path).sources]
        for name in names:
            found.setdefault(os.path.realpath(name), name)
    return list(found.values())


def files_under(folder: str, suffixes: Sequence[str]) -> list[str]:
    """The files of some suffixes in a folder and below, sorted; hidden ones are left out."""
    found: list[str] = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            os.path.join(root, name)
            for name in names
            if not name.startswith(".") and layout_of(name) in suffixes
        ]
    return sorted(found)


def layout_of(name: str) -> str:
    """The suffix that says how a file is laid out, below that of a compression.

    >>> layout_of("reviews.JSONL.xz"), layout_of("corpus.en")
    ('.jsonl', '.en')
    """
    suffixes = Path(name).suffixes
    if suffixes and suffixes[-1].lower() in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1].lower() if suffixes else ""


def file_text(name: str) -> str:
    """The text of a file without its byte order mark, lines ended by line feeds.

    Raises DataError with the line at invalid UTF-8, and where the file is binary or blank.
    """
    with open_bytes(name) as file:
        data = file.read()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{name} is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8.")
    data = data.removeprefix(codecs.BOM_UTF8)
    zero = data.find(b"\0")
    if zero >= 0:
        raise DataError(f"{name} is a binary file (a zero byte in line {_line_at(data, zero)}).")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {_line_at(data, error.start)} is not valid UTF-8 "
            f"(0x{data[error.start]:02x}). Write the file as UTF-8."
        ) from error
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text or text.isspace():
        raise DataError(f"{name} is empty: it holds no example.")
    return text


def _line_at(data: bytes, at: int) -> int:
    """The number of the line that a byte stands in, from 1."""
    before = data[:at].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return before.count(b"\n") + 1


def numbered_lines(name: str) -> Iterator[tuple[int, str]]:
    """The lines of a file without their ends, numbered from 1; only a line feed ends a line."""
    return enumerate(file_text(name).removesuffix("\n").split("\n"), start=1)
