"""The property of every reader: success or a TriviumError, in bounded time and memory."""

from __future__ import annotations

import contextlib
import resource
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import data_readers  # noqa: F401 (fill the table)
import model_readers  # noqa: F401
from damage import Damage, Files
from readers import READERS, sum_again

from trivium.errors import TriviumError

CPU_SECONDS = 20
"""Of one reader on a file of a few kB: what takes longer hangs."""
MOST_BYTES = 400_000_000
"""That one reader may add to the resident memory."""
MOST_WARNINGS = 3
_ADDRESS_SPACE = 6_000_000_000


class Fuzzed:
    """A reader with its good folder, to be damaged again and again."""

    def __init__(self, name: str, folder: Path) -> None:
        self.reader, self.folder = READERS[name], folder
        self.files: Files = self.reader.files()
        for file, content in self.files.items():
            self._write(file, content)

    def check(self, damage: Damage, *, summed: bool) -> TriviumError | None:
        """Read the folder with one file damaged; the error that the reader raised.

        Args:
            damage: of one file; it is good again afterwards.
            summed: write the checksums of the damaged folder anew.
        """
        self._write(damage.name, damage.content)
        if summed and self.reader.summed:
            sum_again(self.folder)
        try:
            return _read(self.reader.read, self.folder_of(damage.name))
        finally:
            for file, content in self.files.items():
                if file == damage.name or "checksums" in file:
                    self._write(file, content)

    def folder_of(self, file: str) -> Path:
        """The folder in which a file is read."""
        return self.folder / f"{file.partition('/')[0]}.alone" if self.reader.alone else self.folder

    def _write(self, file: str, content: bytes | None) -> None:
        path = self.folder_of(file) / file
        path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_bytes(content)


@contextlib.contextmanager
def fuzzed(name: str) -> Iterator[Fuzzed]:
    """A reader by its name, in a temporary folder, with a limit of memory."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _limited_memory(),
        mock.patch("os.fsync"),  # readers that write, too: the disk would be most of the time
    ):
        yield Fuzzed(name, Path(folder))


def _read(read: Any, folder: Path) -> TriviumError | None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = None
    with warnings.catch_warnings(record=True) as caught, _limited_time():
        warnings.simplefilter("always")
        try:
            read(folder)
        except TriviumError as raised:
            error = raised
    message = str(error or "")
    message.encode()
    assert len(message) < 5_000, f"a message that fills the terminal: {message[:100]}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    assert grown < MOST_BYTES, f"{grown / 1e6:.0f} MB of memory"
    texts = {str(one.message) for one in caught}  # Python shows the same text once
    assert len(texts) <= MOST_WARNINGS, f"{len(texts)} warnings: {caught[0].message}"
    for one in caught:  # ours are for the user; others say that something was not checked
        by_python = "invalid escape sequence" in str(one.message)  # of the literal in a .npy file
        assert issubclass(one.category, UserWarning) or by_python, (
            f"{one.category.__name__}: {one.message}"
        )
    return error


@contextlib.contextmanager
def _limited_time() -> Iterator[None]:
    """Seconds of this process's own work, however busy the machine is."""

    def stop(*_: object) -> None:
        raise AssertionError(f"more than {CPU_SECONDS} s of work")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_SPACE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
