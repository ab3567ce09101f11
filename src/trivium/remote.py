"""Read and write files in object storage, such as s3://bucket/texts, through fsspec."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trivium.errors import DataError, TriviumError


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL in object storage, that is, contains "://".

    >>> is_remote("s3://bucket/texts"), is_remote("texts/one.txt")
    (True, False)
    """
    return "://" in os.fspath(path)


def open_remote(url: str) -> BinaryIO:
    """Open a file in object storage for reading bytes.

    Raises OSError if the file does not exist or the storage cannot be reached.
    """
    system = _get_file_system(url)
    try:
        return io.BufferedReader(system.open(url, "rb"))
    except OSError:
        raise
    except Exception as error:  # every storage library has its own exceptions
        raise OSError(str(error)) from error


def list_remote(url: str) -> list[tuple[str, int, int]]:
    """List files in object storage. Returns tuples (URL, size in bytes, modification time in ns).

    `url` is a file, a folder or a glob pattern. A folder is listed with its subfolders. The tuples
    are sorted by URL. Unknown modification times are 0.

    Raises:
        DataError: the storage cannot be read.
    """
    system = _get_file_system(url)
    with _convert_errors(url, "read"):
        find = system.glob if glob.has_magic(url) else system.find
        return [
            (system.unstrip_protocol(name), int(info["size"] or 0), _read_mtime_ns(system, name))
            for name, info in sorted(find(url, detail=True).items())
            if info["type"] != "directory"
        ]


def is_remote_file(url: str) -> bool:
    """Return whether a URL is an existing file in object storage, not a folder.

    Raises DataError if the storage cannot be reached.
    """
    system = _get_file_system(url)
    with _convert_errors(url, "read"):
        return system.isfile(url)


def upload(folder: Path, url: str, *, last: str) -> None:
    """Upload the files in a local folder to the folder `url` in object storage.

    The file whose name is given by `last` is uploaded after all others. Raises DataError if the
    storage cannot be written.
    """
    remote = RemoteFolder(url)
    for file in sorted(folder.iterdir(), key=lambda file: (file.name == last, file.name)):
        remote.upload(file, file.name)


def download(url: str, folder: Path) -> None:
    """Download the files in the remote folder `url` to a local folder. Subfolders are skipped.

    Raises DataError if the storage cannot be read.
    """
    remote = RemoteFolder(url)
    for name in remote.list_files():
        if "/" not in name:
            remote.download(name, folder / name)


@dataclass(frozen=True)
class RemoteFile:
    """The size in bytes and the modification time in ns of a file in object storage."""

    size: int
    mtime_ns: int


class RemoteFolder:
    """A folder in object storage. The names of files are paths relative to the folder.

    Every method raises DataError if the storage cannot be reached or refuses the request.

    Args:
        url: the URL of the folder, such as s3://bucket/runs/gpt.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def list_files(self) -> dict[str, RemoteFile]:
        """Return the files in the folder and its subfolders, by name.

        Hidden files are left out, and so are files whose name leads out of the folder, since object
        storage allows any name. The result is empty if the folder does not exist.
        """
        system, root = self._open(), ""
        with _convert_errors(self.url, "listed"):
            root = system._strip_protocol(self.url).rstrip("/") + "/"
            found = system.find(self.url, detail=True)
            return {
                path.removeprefix(root): RemoteFile(
                    int(info["size"] or 0), _read_mtime_ns(system, path)
                )
                for path, info in sorted(found.items())
                if path.startswith(root) and _is_plain_path(path.removeprefix(root))
            }

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        system = self._open()
        with _convert_errors(self._locate(name), "read"):
            return system.cat_file(self._locate(name))

    def upload(self, file: Path, name: str) -> None:
        """Upload a local file. A file with the same name is replaced.

        Raises FileNotFoundError if the local file does not exist.
        """
        system = self._open()
        with _convert_errors(self._locate(name), "written"):
            try:
                system.put_file(str(file), self._locate(name))
            except FileNotFoundError as error:
                if file.exists():
                    raise DataError(f"{self._locate(name)} cannot be written: {error}.") from error
        file.stat()

    def download(self, name: str, file: Path) -> None:
        """Download a file to a local path."""
        system = self._open()
        file.parent.mkdir(parents=True, exist_ok=True)
        with _convert_errors(self._locate(name), "read"):
            system.get_file(self._locate(name), str(file))

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, in the given order. Files that do not exist are skipped."""
        system = self._open()
        with _convert_errors(self.url, "changed"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    system.rm_file(self._locate(name))

    def _open(self) -> Any:
        """Return the fsspec file system of the folder."""
        return _get_file_system(self.url)

    def _locate(self, name: str) -> str:
        """Return the URL of a file in the folder."""
        return f"{self.url}/{name}"


@contextlib.contextmanager
def _convert_errors(url: str, done: str) -> Iterator[None]:
    """Context manager that converts errors of the storage into DataError: "URL cannot be `done`".

    Every storage library has its own exceptions, without a base class in common.
    """
    try:
        yield
    except TriviumError:
        raise
    except Exception as error:
        raise DataError(f"{url} cannot be {done}: {error}.") from error


def _is_plain_path(name: str) -> bool:
    """Return whether a relative path stays in its folder and has no hidden part.

    >>> [_is_plain_path(name) for name in ("a/b.json", "../a", "a//b", ".lock", "")]
    [True, False, False, False, False]
    """
    parts = name.split("/")
    return posixpath.normpath(name) == name and not any(part.startswith(".") for part in parts)


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
        system = fsspec.core.url_to_fs(url)[0]
    except (ImportError, ValueError) as error:  # the library for the scheme is not installed
        raise DataError(f"{url} cannot be opened: {error}.") from error
    system.invalidate_cache()  # other processes write files, too
    return system


def _read_mtime_ns(system: Any, name: str) -> int:
    """Return the modification time of a remote file in nanoseconds, or 0 if it is unknown."""
    try:
        return int(system.modified(name).timestamp() * 1e9)
    except (NotImplementedError, KeyError, AttributeError):
        return 0
