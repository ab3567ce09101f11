"""Read and write files in object storage, such as s3://bucket/texts, through fsspec."""

from __future__ import annotations

import glob
import hashlib
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

from trivium.errors import DataError


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL in object storage, that is, contains "://".

    >>> is_remote("s3://bucket/texts"), is_remote("texts/one.txt")
    (True, False)
    """
    return "://" in os.fspath(path)


def open_remote(url: str) -> BinaryIO:
    """Open a file in object storage for reading bytes. Raises OSError if it does not exist."""
    return io.BufferedReader(_get_file_system(url).open(url, "rb"))


def list_remote(url: str) -> list[tuple[str, int, int]]:
    """List files in object storage. Returns tuples (URL, size in bytes, modification time in ns).

    `url` is a file, a folder or a glob pattern. A folder is listed with its subfolders. The tuples
    are sorted by URL. Unknown modification times are 0.

    Raises:
        DataError: the storage cannot be read.
    """
    system = _get_file_system(url)
    try:
        find = system.glob if glob.has_magic(url) else system.find
        return [
            (system.unstrip_protocol(name), int(info["size"] or 0), _read_mtime_ns(system, name))
            for name, info in sorted(find(url, detail=True).items())
            if info["type"] != "directory"
        ]
    except OSError as error:
        raise DataError(f"{url} cannot be read: {error}.") from error


def is_remote_file(url: str) -> bool:
    """Return whether a URL is an existing file in object storage, not a folder."""
    return _get_file_system(url).isfile(url)


def upload(folder: Path, url: str, *, last: str) -> None:
    """Upload the files in a local folder to the folder `url` in object storage.

    The file whose name is given by `last` is uploaded after all others.
    """
    system = _get_file_system(url)
    for file in sorted(folder.iterdir(), key=lambda file: (file.name == last, file.name)):
        system.put_file(str(file), f"{url.rstrip('/')}/{file.name}")


def download(url: str, folder: Path) -> None:
    """Download the files in the remote folder `url` to a local folder. Subfolders are skipped."""
    system = _get_file_system(url)
    for entry in system.ls(url.rstrip("/"), detail=True):
        name = entry["name"].rpartition("/")[2]
        if entry["type"] == "file" and name.strip("."):
            system.get_file(entry["name"], str(folder / name))


def cache_path(*keys: str) -> Path:
    """Return the path of the cache entry for `keys`.

    Its name is a hash of the keys, in the folder $TRIVIUM_CACHE or ~/.cache/trivium.
    """
    return cache_folder(hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16])


def cache_folder(name: str) -> Path:
    """Return the path of a folder of the cache: $TRIVIUM_CACHE or ~/.cache/trivium."""
    root = os.environ.get("TRIVIUM_CACHE") or Path.home() / ".cache" / "trivium"
    return Path(root) / name


def _get_file_system(url: str) -> Any:
    """Return the fsspec file system for a URL. Raises DataError if its scheme is not supported."""
    import fsspec  # slow to import

    try:
        return fsspec.core.url_to_fs(url)[0]
    except (ImportError, ValueError) as error:  # the library for the scheme is not installed
        raise DataError(f"{url} cannot be opened: {error}.") from error


def _read_mtime_ns(system: Any, name: str) -> int:
    """Return the modification time of a remote file in nanoseconds, or 0 if it is unknown."""
    try:
        return int(system.modified(name).timestamp() * 1e9)
    except (NotImplementedError, KeyError, AttributeError):
        return 0
