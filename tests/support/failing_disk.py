"""A disk on which one operation fails, or whose power fails before every operation in turn."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from safetensors import SafetensorError

from trivium.files import HashedFile


class FailingDisk:
    """Notes what is written, renamed, flushed and deleted; fails the operation number `failing`.

    Args:
        failing: counted from 1; None: no operation fails.
        before: called with the name of every operation before it is done. A write is two of them,
            so that it can end halfway.
    """

    def __init__(
        self, failing: int | None = None, before: Callable[[str], None] = lambda name: None
    ) -> None:
        self.failing, self.before = failing, before
        self.operations: list[str] = []
        self._paused = False
        self.flushed: dict[int, int] = {}
        """Inode -> bytes that are on the disk for sure."""

    @contextlib.contextmanager
    def mounted(self) -> Iterator[FailingDisk]:
        """Put it in place of Python's and the kernel's functions."""
        fsync = os.fsync

        def flush(file: int) -> None:
            self.operation("fsync")
            fsync(file)
            self.flushed[os.fstat(file).st_ino] = os.fstat(file).st_size

        def save_file(tensors: Any, file: Path, metadata: Any) -> None:
            try:
                file.write_bytes(safetensors.torch.save(tensors, metadata))
            except OSError as error:
                raise SafetensorError("I/O error: No space left on device (os error 28)") from error

        disk = self

        class CountedFile(HashedFile):
            def __init__(self, path: str | os.PathLike[str]) -> None:
                disk.operation("open")
                super().__init__(path)

            def write(self, data: Any, /) -> int:
                disk.operation("write")
                return super().write(data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trivium.train.checkpoint.HashedFile", CountedFile)
            for module in (builtins, io):
                patch.setattr(module, "open", self._opening(module.open))
            for name in ("replace", "rename", "mkdir", "chmod", "sendfile", "rmdir"):
                patch.setattr(os, name, self._counted(name, getattr(os, name)))
            patch.setattr(os, "unlink", self._forgetting(os.unlink))
            patch.setattr(os, "fsync", flush)
            patch.setattr("trivium.interop.tensor_files.save_file", save_file)
            yield self

    def operation(self, name: str) -> None:
        """Count an operation, and fail where it is its turn."""
        if self._paused:
            return
        self._paused = True
        self.before(name)
        self._paused = False
        self.operations.append(name)
        if len(self.operations) == self.failing:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.operation(name)
            return function(*arguments, **options)

        return counted

    def _forgetting(self, unlink: Callable[..., Any]) -> Callable[..., Any]:
        def forget(path: Any, *, dir_fd: int | None = None) -> None:
            self.operation("unlink")
            with contextlib.suppress(OSError):
                status = os.stat(path, dir_fd=dir_fd)
                if status.st_nlink == 1:
                    self.flushed.pop(status.st_ino, None)
            unlink(path, dir_fd=dir_fd)

        return forget

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def open_counted(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not set("wax+") & set(mode):
                return function(path, mode, *arguments, **options)
            self.operation("open")
            return _File(function(path, mode, *arguments, **options), self)

        return open_counted


class _File:
    """An open file, each of whose writes has two halves."""

    def __init__(self, file: Any, disk: FailingDisk) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def write(self, data: Any) -> None:
        self._disk.operation("write")
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._disk.operation("write of the other half")
        self._file.write(data[half:])


def copy_after_power_failure(folder: Path, to: Path, disk: FailingDisk) -> None:
    """What is left of a folder: of every file the bytes that were flushed."""
    shutil.copytree(folder, to)
    for file in folder.rglob("*"):
        if file.is_file():
            os.truncate(to / file.relative_to(folder), disk.flushed.get(file.stat().st_ino, 0))
