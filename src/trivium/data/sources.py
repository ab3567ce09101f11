"""Text sources: files, globs, folders, standard input and hub data sets, as a stream of documents.

Nothing is read whole: memory holds one block and one document, whatever the size of the corpus
(`separator="file"` makes a document of a whole file, and takes its memory).
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from trivium.data.formats import Digest, ReadOptions, read_text
from trivium.data.tables import read_table
from trivium.errors import DataError, MissingExtraError

COMPRESSIONS = (".gz", ".xz", ".zst")
FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
STDIN = "-"


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One document: its text, with line feeds between lines, and the name of its source."""

    text: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """One place that documents come from.

    `named` is False for a file found in a folder, which may be empty without being an error.
    `size` in bytes as stored and `modified` in nanoseconds are 0 where there is no file.
    """

    name: str
    kind: Literal["file", "stdin", "hub"]
    named: bool = True
    size: int = 0
    modified: int = 0

    @property
    def format(self) -> str:
        """The suffix that says how the file is laid out; unknown ones are plain text."""
        suffixes = Path(self.name).suffixes
        if suffixes and suffixes[-1].lower() in COMPRESSIONS:
            suffixes.pop()
        last = suffixes[-1].lower() if suffixes else ""
        return last if last in FORMATS else ".txt"


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """The sources that some paths stand for, and the files of folders that were passed over."""

    sources: tuple[Source, ...]
    skipped: tuple[str, ...]


def list_sources(paths: Sequence[str | Path] | str | Path) -> Listing:
    """Expand files, globs, folders, "-" and "hf:NAME" into sources, each once.

    Folders are walked in sorted order; hidden files are left out, files of unknown suffix are
    listed in `skipped`. A file that is named is read as plain text whatever its suffix.

    Raises DataError where a path does not exist or has nothing to read.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    if not paths:
        raise DataError("No text was given. Name a file, a folder, a glob, hf:NAME or - (stdin).")
    found: dict[str, Source] = {}
    skipped: list[str] = []
    for path in map(str, paths):
        for source in _expand(path, skipped):
            key = os.path.realpath(source.name) if source.kind == "file" else source.name
            found.setdefault(key, source)
    return Listing(tuple(found.values()), tuple(skipped))


def source_files(paths: Sequence[str | Path] | str | Path) -> list[Source]:
    """The sources that some paths stand for, with their sizes; see `list_sources`."""
    return list(list_sources(paths).sources)


def _expand(path: str, skipped: list[str]) -> list[Source]:
    """The sources of one path; adds to `skipped`."""
    if path == STDIN:
        return [Source(STDIN, "stdin")]
    if path.startswith("hf:"):
        return [Source(path, "hub")]
    if os.path.isdir(path):
        return _walk(path, skipped)
    if os.path.isfile(path):
        return [_file(path, named=True)]
    if os.path.exists(path):
        return [Source(path, "file")]
    if glob.has_magic(path):
        matches = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)))
        if matches:
            return [_file(match, named=True) for match in matches]
        raise DataError(f"No file matches {path}.")
    raise DataError(f"There is no file or folder {path}.")


def _file(path: str, *, named: bool) -> Source:
    status = os.stat(path)
    return Source(path, "file", named, status.st_size, status.st_mtime_ns)


def _walk(folder: str, skipped: list[str]) -> list[Source]:
    """The readable files under a folder, sorted by path."""
    known: list[Source] = []
    others: list[str] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = os.path.join(root, name)
            if not os.path.isfile(path):
                continue
            if _has_known_suffix(name):
                known.append(_file(path, named=False))
            else:
                others.append(path)
    if not known:
        raise DataError(
            f"The folder {folder} has no text that can be read ({len(others)} other files). "
            f"Known are {' '.join(FORMATS)}, each also {' '.join(COMPRESSIONS)}; "
            "name a file itself to read it as plain text."
        )
    skipped.extend(others)
    return sorted(known, key=lambda source: source.name)


def _has_known_suffix(name: str) -> bool:
    name = name.lower()
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    return name.endswith(FORMATS)


def read_documents(
    paths: Sequence[str | Path] | str | Path,
    *,
    separator: str = "blank",
    text_field: str = "text",
    errors: str = "strict",
) -> Iterator[Document]:
    """The documents of files, globs, folders, "-" (standard input) and "hf:NAME", as a stream.

    - `.txt` and named files of other suffixes: parted by `separator`: "blank" (blank lines),
      "line", "file", or any other string, which then stands between documents and may use
      backslash-n and backslash-t.
    - `.jsonl`, `.csv`, `.tsv` (tab-separated, no quoting), `.parquet`: `text_field` of every
      record.
    - each also compressed: `.gz`, `.xz`, `.zst`.
    - `hf:NAME[:CONFIG][:SPLIT]`: a data set of the Hugging Face hub, streamed.

    Line endings become line feeds, a byte order mark is dropped, documents without a visible
    character are left out. `errors="replace"` reads invalid UTF-8 as U+FFFD.

    Raises DataError at a missing path, an empty or binary file, invalid UTF-8, a missing field,
    a broken record, or where there is no document at all.
    """
    options = ReadOptions(separator, text_field, errors)
    sources = source_files(paths)
    empty = True
    for source in sources:
        for text in read_source(source, options):
            empty = False
            yield Document(text, source.name)
    if empty:
        raise DataError(f"There is no text in {', '.join(source.name for source in sources[:5])}.")


def read_source(
    source: Source, options: ReadOptions, digest: Digest | None = None
) -> Iterator[str]:
    """The texts of one source. `digest` is fed the bytes of the file as stored.

    Raises DataError as `read_documents` does; an empty source is an error only where it is named.
    """
    empty = True
    for text in _read(source, options, digest):
        if text and not text.isspace():
            empty = False
            yield text
    if empty and source.named:
        name = "Standard input" if source.kind == "stdin" else source.name
        raise DataError(f"{name} is empty: it holds no document.")


def _read(source: Source, options: ReadOptions, digest: Digest | None) -> Iterator[str]:
    if source.kind == "hub":
        return _read_hub(source.name, options)
    if source.format == ".txt":
        return read_text(source.name, options, digest)
    return read_table(source.name, source.format, options, digest)


def _read_hub(name: str, options: ReadOptions) -> Iterator[str]:
    """The texts of `hf:NAME[:CONFIG][:SPLIT]`; two parts are NAME:CONFIG, the split is "train"."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("Reading hub data", "hub") from error
    parts = name.removeprefix("hf:").split(":")
    if not parts[0] or len(parts) > 3:
        raise DataError(f'"{name}" is no data set; write hf:NAME, hf:NAME:CONFIG:SPLIT.')
    config = parts[1] if len(parts) > 1 and parts[1] else None
    split = parts[2] if len(parts) > 2 and parts[2] else "train"
    try:
        rows = datasets.load_dataset(parts[0], config, split=split, streaming=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{name} cannot be loaded: {error}") from error
    for row in rows:
        record: dict[str, object] = dict(row)
        yield from options.field_of(record, name)
