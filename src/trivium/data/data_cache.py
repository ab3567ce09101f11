"""The cache of prepared data: folders that several processes and runs share.

An entry is a folder whose name is a digest of everything that determines its files. `entry.json`
contains the full digest and the SHA-256 of every file, so that a damaged entry is rebuilt. Entries
that no run has opened for `UNUSED_DAYS` days are deleted when another entry is written.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trivium.errors import DataError
from trivium.files import (
    has_sha256,
    read_json,
    replace_folder,
    seconds_since_change,
    sha256,
    write_json,
)

UNUSED_DAYS = 30
_ENTRY_FILE = "entry.json"


class CacheEntry:
    """An entry of the cache. `keys` are the texts that determine the files of the entry.

    The code of this package is one of the keys, so that another version builds entries of its own.
    """

    def __init__(self, root: Path, *keys: str) -> None:
        digest = hashlib.sha256(_digest_package().encode())
        for key in keys:
            digest.update(f"{len(key)} {key}".encode())
        self.digest = digest.hexdigest()
        self.folder = root / self.digest[:32]

    def is_valid(self) -> bool:
        """Return whether the entry exists, belongs to the keys, and has all files unchanged.

        A valid entry counts as used now. Warns if there is an entry that is not valid.
        """
        if not self.folder.is_dir():
            return False
        valid = False
        with contextlib.suppress(DataError, OSError, KeyError, TypeError, AttributeError):
            entry = read_json(self.folder / _ENTRY_FILE)
            valid = entry["digest"] == self.digest and all(
                has_sha256(self.folder / Path(name).name, digest)
                for name, digest in entry["files"].items()
            )
        if not valid:
            warnings.warn(
                f"the prepared data in {self.folder} is damaged or incomplete: it is prepared "
                "again.",
                stacklevel=2,
            )
            return False
        with contextlib.suppress(OSError):  # a cache that this user can only read
            os.utime(self.folder)
        return True

    def read_notes(self) -> dict[str, Any]:
        """Return the notes that `write` has stored with the files."""
        return read_json(self.folder / _ENTRY_FILE)["notes"]

    @contextlib.contextmanager
    def write(self, notes: dict[str, Any]) -> Iterator[Path]:
        """Yield a temporary folder for the files. At the end of the block it becomes the entry.

        `notes` are stored with the files; the block may still fill them. An existing entry is
        replaced.
        """
        with replace_folder(self.folder) as folder:
            yield folder
            files = {file.name: sha256(file) for file in sorted(folder.iterdir())}
            entry = {"digest": self.digest, "files": files, "notes": notes}
            write_json(folder / _ENTRY_FILE, entry)
        self._delete_unused_entries()

    def _delete_unused_entries(self) -> None:
        """Delete the entries of the same cache that have not been used for a long time."""
        for file in self.folder.parent.glob(f"*/{_ENTRY_FILE}"):
            with contextlib.suppress(OSError):  # another process deletes the entry, too
                if seconds_since_change(file.parent) > UNUSED_DAYS * 24 * 3600:
                    shutil.rmtree(file.parent)


def digest_files(paths: Iterable[str]) -> str:
    """Return a digest of the names and contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


@functools.cache
def _digest_package() -> str:
    """Return a digest of the source code of this package."""
    folder = Path(__file__).parents[1]
    return digest_files(map(str, sorted(folder.rglob("*.py"))))
