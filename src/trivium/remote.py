"""Read and write objects in object storage, such as s3://bucket/texts, through fsspec."""

from __future__ import annotations

import glob
import hashlib
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

from trivium.errors import DataError


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL with a scheme, that is, in object storage.

    >>> is_remote("s3://bucket/texts"), is_remote("texts/one.txt")
    (True, False)
    """
    return "://" in os.fspath(path)


def open_remote(url: str) -> BinaryIO:
    """Open an object for reading. Raises OSError if it does not exist."""
    return io.BufferedReader(_file_system(url).open(url, "rb"))


def list_remote(url: str) -> list[tuple[str, int, int]]:
    """Return the sorted objects that a URL names, contains (as a folder) or matches (as a glob).

    Each object is a tuple of its URL, its size in bytes, and its modification time in nanoseconds
    (0 if unknown). Raises DataError if the storage cannot be read.
    """
    system = _file_system(url)
    try:
        find = system.glob if glob.has_magic(url) else system.find
        return [
            (system.unstrip_protocol(name), int(info["size"] or 0), _modified_time_ns(system, name))
            for name, info in sorted(find(url, detail=True).items())
            if info["type"] != "directory"
        ]
    except OSError as error:
        raise DataError(f"{url} cannot be read: {error}.") from error


def remote_is_file(url: str) -> bool:
    """Return whether the URL is an existing object, not a folder."""
    return _file_system(url).isfile(url)


def upload(folder: Path, url: str, *, last: str) -> None:
    """Copy the files of a local folder to object storage, the file named `last` at the end."""
    system = _file_system(url)
    for file in sorted(folder.iterdir(), key=lambda file: (file.name == last, file.name)):
        system.put_file(str(file), f"{url.rstrip('/')}/{file.name}")


def download(url: str, folder: Path) -> None:
    """Copy the objects directly under `url` to a local folder. Subfolders are skipped."""
    system = _file_system(url)
    for entry in system.ls(url.rstrip("/"), detail=True):
        name = entry["name"].rpartition("/")[2]
        if entry["type"] == "file" and name.strip("."):
            system.get_file(entry["name"], str(folder / name))


def cache_path(*keys: str) -> Path:
    """Return the cache path for the given keys, in $TRIVIUM_CACHE or ~/.cache/trivium."""
    root = os.environ.get("TRIVIUM_CACHE") or Path.home() / ".cache" / "trivium"
    return Path(root) / hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]


def _file_system(url: str) -> Any:
    """Return the fsspec file system of a URL. Raises DataError if its scheme is not supported."""
    import fsspec  # slow to import

    try:
        return fsspec.core.url_to_fs(url)[0]
    except (ImportError, ValueError) as error:  # the library for the scheme is not installed
        raise DataError(f"{url} cannot be opened: {error}.") from error


def _modified_time_ns(system: Any, name: str) -> int:
    """Return the modification time of an object in nanoseconds, or 0 if it is unknown."""
    try:
        return int(system.modified(name).timestamp() * 1e9)
    except (NotImplementedError, KeyError, AttributeError):
        return 0
