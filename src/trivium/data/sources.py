"""Sources of data: the files, hub datasets and standard input that paths refer to."""

from __future__ import annotations

import dataclasses
import glob
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from trivium.errors import DataError, MissingExtraError, nearest_name
from trivium.files import COMPRESSIONS, STDIN
from trivium.remote import is_remote, list_remote

PYTHON = "python:"
"""The prefix of the names of sources that were passed as Python objects.

A run stores the data of such sources in its folder.
"""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A file, a dataset on the hub, or standard input.

    Args:
        name: the path, the name on the hub, or "-".
        named: whether the user named this source. False for files that were found in a folder.
        size: the size of a file in bytes, as stored; 0 for other sources.
        modified: the modification time of a file in nanoseconds; 0 for other sources.
        split: the split of all documents in the source. If None, the split of each document depends
            on the hash of its text.
        extent: the first byte of the part of the file that is read, and the byte after its last;
            None for the whole file.
    """

    name: str
    named: bool = True
    size: int = 0
    modified: int = 0
    split: str | None = None
    extent: tuple[int, int] | None = None

    @property
    def kind(self) -> Literal["file", "stdin", "hub"]:
        """The kind of the source: a file, standard input or a dataset on the hub."""
        if self.name == STDIN:
            return "stdin"
        return "hub" if self.name.startswith("hf:") else "file"


@dataclasses.dataclass(frozen=True, slots=True)
class SourceList:
    """The sources that paths refer to, and the files in folders that were skipped."""

    sources: tuple[Source, ...]
    skipped: tuple[str, ...]


def list_sources(paths: Paths, suffixes: Sequence[str]) -> SourceList:
    """List the sources that paths refer to, without repetitions, and the skipped files.

    Paths are files, globs, folders, "-" (standard input) and "hf:NAME". Files, globs and folders
    can be in object storage, such as s3://bucket/texts. Folders are searched recursively in sorted
    order, without hidden files. A file found in a folder is skipped if its suffix is not one of
    `suffixes`; a compression suffix is ignored.

    Raises DataError if a path does not exist, or if all files in a folder are skipped.
    """
    names = list_paths(paths)
    if not names:
        raise DataError("There is no input. Name a file, a folder, a glob, hf:NAME or - (stdin).")
    sources: dict[str, Source] = {}
    skipped: list[str] = []
    for name in names:
        files = _expand_path(name)
        readable = [one for one in files if one.named or file_format(one.name) in suffixes]
        if not readable:
            raise DataError(
                f"The folder {name} has no file that can be read ({len(files)} other files). "
                f"Known are {' '.join(suffixes)}, each also {' '.join(COMPRESSIONS)}; "
                "files with other suffixes must be named one by one."
            )
        for source in readable:
            sources.setdefault(identify_source(source), source)
        kept = {one.name for one in readable}
        skipped += [one.name for one in files if one.name not in kept]
    return SourceList(tuple(sources.values()), tuple(skipped))


def list_paths(paths: Paths) -> tuple[str, ...]:
    """Convert one path, or a sequence of paths, to a tuple of strings."""
    several = (paths,) if isinstance(paths, str | os.PathLike) else paths
    return tuple(os.fspath(path) for path in several)


def describe_missing_paths(paths: Sequence[str]) -> list[str]:
    """Return an error message for each path that does not exist.

    Globs, names on the hub and standard input are not checked.
    """
    return [
        f"There is no file or folder {path}.{_suggest_path(path)}"
        for path in paths
        if path != STDIN
        and not path.startswith(("hf:", PYTHON))
        and not is_remote(path)
        and not os.path.exists(path)
        and not glob.has_magic(path)
    ]


def list_local_files(paths: Paths) -> list[str] | None:
    """Return all files that paths refer to, whatever their suffixes, sorted within each folder.

    Returns None if a path is not a local file or folder, but for example a dataset on the hub.
    """
    sources = [source for path in list_paths(paths) for source in _expand_path(path)]
    local = all(os.path.isfile(source.name) for source in sources)
    return [source.name for source in sources] if local else None


def check_libraries(paths: Sequence[str]) -> None:
    """Raise MissingExtraError if a library that is needed to read the paths is not installed."""
    for path in paths:
        if path.startswith("hf:"):
            if importlib.util.find_spec("datasets") is None:
                raise MissingExtraError("Reading data of the hub", "hub")
        elif path != STDIN and not path.startswith(PYTHON) and not is_remote(path):
            parquet = any(file_format(one.name) == ".parquet" for one in _expand_path(path))
            if parquet and importlib.util.find_spec("pyarrow") is None:
                raise MissingExtraError("Reading Parquet", "parquet")


def _suggest_path(path: str) -> str:
    """Return a sentence that suggests a similarly named file in the same folder.

    Returns an empty string if there is no such file.
    """
    folder = Path(path).parent
    names = [one.name for one in folder.glob("[!.]*")] if os.path.isdir(folder) else []
    near = nearest_name(Path(path).name, names)
    return "".join(f" Did you mean {Path(path).with_name(name)}?" for name in near)


def identify_source(source: Source) -> str:
    """Return a unique key for a source: the real path of a local file, otherwise the name."""
    local = source.kind == "file" and not is_remote(source.name)
    return os.path.realpath(source.name) if local else source.name


def file_format(path: str) -> str:
    """Return the suffix of a file in lower case, ignoring the suffix of a compression format.

    >>> file_format("reviews.JSONL.xz"), file_format("corpus.en"), file_format("README")
    ('.jsonl', '.en', '')
    """
    suffixes = Path(path.lower()).suffixes
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _expand_path(path: str) -> list[Source]:
    """Return the sources that one path refers to.

    For a folder, these are all files in it, whatever their suffixes.
    """
    if path == STDIN or path.startswith("hf:"):
        return [Source(path)]
    if is_remote(path):
        return _list_remote_sources(path)
    if os.path.isdir(path):
        return [_make_local_source(one, named=False) for one in walk_files(path)]
    if os.path.isfile(path):
        return [_make_local_source(path, named=True)]
    if os.path.exists(path):  # a pipe or a device
        return [Source(path)]
    if glob.has_magic(path):
        matches = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)))
        if matches:
            return [_make_local_source(match, named=True) for match in matches]
        raise DataError(f"No file matches {path}.")
    raise DataError(*describe_missing_paths([path]))


def _make_local_source(path: str, *, named: bool) -> Source:
    """Return the `Source` for a local file, with its size and modification time."""
    status = os.stat(path)
    return Source(path, named, status.st_size, status.st_mtime_ns)


def _list_remote_sources(path: str) -> list[Source]:
    """Return the sources that a path in object storage refers to.

    The path is an object, a glob or a folder.
    """
    objects = list_remote(path)
    if not objects:
        raise DataError(f"There is no object {path}, and none under it.")
    named = glob.has_magic(path) or [name for name, _, _ in objects] == [path]
    return [Source(name, named, size, modified) for name, size, modified in objects]


def walk_files(folder: str | os.PathLike[str]) -> list[str]:
    """List all files in a folder and its subfolders, except hidden files, in sorted order.

    Links to folders are followed, but no folder is listed twice.

    Raises DataError if the target of a link is missing.
    """
    paths: list[str] = []
    visited: set[str] = set()
    start = os.path.realpath(folder)
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in visited or start.startswith(os.path.join(real, "")):
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [os.path.join(root, name) for name in names if not name.startswith(".")]
    lost = next((path for path in paths if not os.path.exists(path)), None)
    if lost is not None:
        raise DataError(f"{lost} is a link to a file that is missing. Restore it, or remove it.")
    return sorted(filter(os.path.isfile, paths))
