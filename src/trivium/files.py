"""Write files atomically, compute checksums, read and write JSON, and read compressed text.

A file or folder is written under a temporary name next to its target, flushed to the disk and
renamed. After a crash the target has the complete old or the complete new content. The exception is
replacing a folder, which takes two renames: a crash between them leaves the old and the new folder
under hidden names next to the target (`.NAME.XXXXXXXX.tmp`).
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import errno
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import secrets
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import zstandard

from trivium.errors import DataError, nearest_name
from trivium.messages import english
from trivium.remote import cache_path, is_remote, open_remote

try:
    import fcntl
except ImportError:  # not Unix
    fcntl = None

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
STDIN = "-"
_BLOCK = 1 << 18
_LFS_HEADER = b"version https://git-lfs.github.com/spec/"
_SETTLED_SECONDS = 2.0  # the coarsest time resolution of file systems


def version_entry() -> dict[str, str]:
    """Return the entry {"trivium": version} that Trivium writes into its JSON files."""
    return {"trivium": version("trivium")}


def pop_version(content: Any) -> bool:
    """Remove the version entry from the parsed content of a JSON file.

    Returns whether there was an entry. Files written by version 0.2 of Trivium have none.
    """
    return isinstance(content, dict) and content.pop("trivium", None) is not None


@contextlib.contextmanager
def replace_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary stream to write to. Its content replaces the file `path` atomically.

    If the `with` block raises an error, `path` stays unchanged. The permissions of the new file
    follow the umask.
    """
    path = Path(path)
    temporary = temporary_path(path)
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def write_file(path: str | Path, data: str | bytes) -> None:
    """Write or replace a file atomically. The permissions of the file follow the umask."""
    with replace_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replace_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder to write files to. At the end of the block it replaces `path`.

    If the block raises an error, the temporary folder is removed and `path` stays unchanged.
    """
    path = Path(path).resolve()  # A symbolic link stays and points to the new folder.
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            sync(file)
        sync(temporary)
        move_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_folder(source: Path, target: Path) -> None:
    """Rename a folder to `target`. An existing file or folder at `target` is replaced.

    If the renaming fails or is interrupted, the old `target` is restored.
    """
    old = temporary_path(target)
    try:
        if target.exists():
            os.replace(target, old)
        os.replace(source, target)
    except BaseException:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise
    sync(target.parent)
    if old.is_dir():
        shutil.rmtree(old)
    else:
        old.unlink(missing_ok=True)


@contextlib.contextmanager
def file_lock(path: Path, *, shared: bool = False) -> Iterator[TextIO]:
    """Lock a file while the `with` block runs, without waiting.

    A missing file and its folder are created. The kernel releases the lock when the process ends,
    even after a crash. Several processes can hold a `shared` lock at the same time. On systems
    without fcntl (not Unix), nothing is locked.

    Raises:
        BlockingIOError: another process holds a conflicting lock.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("a+", encoding="utf-8")
        except FileNotFoundError:  # another process has just removed the folder
            continue
        with file:
            if fcntl is not None:  # without fcntl there is no lock
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    yield file
                    return
        # Another process removed the file after it was opened here.


class HashedFile(io.FileIO):
    """A file opened for writing, which computes the SHA-256 digest of its content meanwhile."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "wb")
        self._hash = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        """Write a part of `data`. Returns the number of bytes that were written."""
        count = super().write(data)
        self._hash.update(memoryview(data)[:count])
        return count

    def sha256(self) -> str:
        """Return the digest of the bytes written so far as a hexadecimal string."""
        return self._hash.hexdigest()


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync). Skips folders on Windows."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        if path.is_dir():  # Windows cannot open folders
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_path(path: Path) -> Path:
    """Return a path with a random hidden name in the same folder as `path`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def is_file_name(name: str) -> bool:
    """Return whether an untrusted string is a plain file name, not a path to another folder.

    >>> [is_file_name(name) for name in ("a.json", "../a.json", "/etc/passwd", "..")]
    [True, False, False, False]
    """
    return Path(name).name == name != ".." and len(name.encode(errors="replace")) < 256


def sha256(path: str | Path) -> str:
    """Return the SHA-256 digest of a file as a hexadecimal string."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_sha256(path: str | Path, digest: str) -> bool:
    """Return whether a file has the given SHA-256 digest. A match is cached until the file changes.

    The cache entry is an empty file whose name depends on path, inode, size, modification time and
    digest. A file modified in the last two seconds is not cached, because another write might leave
    its modification time unchanged.
    """
    stat = os.stat(path)
    keys = (os.path.realpath(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, digest)
    mark = cache_path("sha256", *map(str, keys))
    if mark.exists():
        return True
    if sha256(path) != digest:
        return False
    if time.time() - stat.st_mtime > _SETTLED_SECONDS:
        with contextlib.suppress(OSError):  # without a cache the file is read every time
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    return True


def seconds_since_change(path: Path) -> float:
    """Return the time since a file or folder was last modified, in seconds."""
    return time.time() - path.stat().st_mtime


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file. Raises DataError if the file is missing or invalid."""
    try:
        reject_lfs_pointer(path)
        text = Path(path).read_text(encoding="utf-8")
        value = json.loads(text)
        if "\\ud" in text.lower():  # a lone surrogate, which UTF-8 cannot encode
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}.") from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file. Reading stops at the first damaged line.

    Returns [] if the file does not exist.
    """
    records = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict):
            break
        records.append(record)
    return records


def nan_to_none(value: Any) -> Any:
    """Replace infinities and NaN in a nested value by None, because JSON has no such numbers.

    >>> nan_to_none({"auc": math.nan, "losses": [1.5, math.inf]})
    {'auc': None, 'losses': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: nan_to_none(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | Path, value: Any) -> None:
    """Write a value to an indented JSON file, which is replaced atomically."""
    write_file(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def reject_lfs_pointer(path: str | Path) -> None:
    """Raise DataError if a file is only a Git LFS pointer, whose content was not downloaded."""
    with open(path, "rb") as file:
        if file.read(len(_LFS_HEADER)) == _LFS_HEADER:
            raise DataError(
                f"{path} is a Git LFS pointer, which stands for a file that was not downloaded. "
                "Run `git lfs pull` in its folder."
            )


@contextlib.contextmanager
def open_binary(path: str | Path) -> Iterator[BinaryIO]:
    """Open a local file, a remote object or standard input ("-") as a stream of bytes.

    A remote object has a URL such as s3://bucket/name. The suffix of `path` (".gz", ".bz2", ".xz",
    ".zst") decides whether and how the content is decompressed.

    Raises:
        DataError: the file cannot be opened or read, or its compressed data is damaged. Errors
            while reading inside the `with` block are converted, too.
    """
    with contextlib.ExitStack() as stack:
        try:
            raw_file: BinaryIO = sys.stdin.buffer
            if is_remote(path):
                raw_file = stack.enter_context(open_remote(str(path)))
            elif str(path) != STDIN:
                if os.path.isfile(path):
                    reject_lfs_pointer(path)
                raw_file = stack.enter_context(open(path, "rb"))
            yield cast(BinaryIO, _decompress(raw_file, Path(path).suffix.lower()))
        except (lzma.LZMAError, zstandard.ZstdError, zlib.error, EOFError) as error:
            raise DataError(f"{path} is damaged or not what its suffix says: {error}.") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _decompress(raw_file: BinaryIO, suffix: str) -> io.BufferedIOBase | BinaryIO:
    """Return a stream that decompresses `raw_file`, or `raw_file` itself for any other suffix."""
    match suffix:
        case ".gz":
            return gzip.GzipFile(fileobj=raw_file)
        case ".bz2":
            return bz2.BZ2File(raw_file)
        case ".xz":
            return lzma.LZMAFile(raw_file)
        case ".zst":
            return io.BufferedReader(_ZstandardFile(raw_file), _BLOCK)
        case _:
            return raw_file


class _ZstandardFile(io.RawIOBase):
    """A stream that decompresses a Zstandard file with any number of frames.

    A truncated file raises EOFError. The zstandard library's own reader would return its content
    without an error.
    """

    def __init__(self, raw_file: BinaryIO) -> None:
        super().__init__()
        self._raw_file = raw_file
        self._compressed, self._content = b"", memoryview(b"")
        self._frame: zstandard.ZstdDecompressionObj | None = None

    def readable(self) -> bool:
        """Return True, because `io.RawIOBase` requires this method of a stream that can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read decompressed bytes into `buffer`. Returns the number of bytes, or 0 at the end."""
        while not self._content and (compressed := self._compressed or self._raw_file.read(_BLOCK)):
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            self._content, self._compressed = memoryview(self._frame.decompress(compressed)), b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        if not self._content and self._frame is not None:
            raise EOFError("the compressed data ends early")
        count = min(len(buffer), len(self._content))
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count


@contextlib.contextmanager
def open_text(
    path: str | Path,
    *,
    errors: str = "strict",
    encoding: str = "utf-8",
    extent: tuple[int, int] | None = None,
) -> Iterator[TextIO]:
    """Open a text file, a remote object or standard input ("-"). Compressed files are decompressed.

    A byte order mark at the start of UTF-8 or UTF-16 is removed. `\\r\\n` and `\\r` become `\\n`.
    With `errors="replace"`, invalid bytes are read as U+FFFD. With `extent`, only the bytes of a
    local file from the first offset up to (excluding) the second are read, all at once.

    Raises:
        DataError: the file cannot be read, is binary, or has another encoding. For UTF-8, the
            message names the line and the probable encoding. Errors while reading inside the `with`
            block are converted, too.
    """
    with open_binary(path) as file:
        if extent is not None:
            file.seek(extent[0])
            file = io.BufferedReader(io.BytesIO(file.read(extent[1] - extent[0])))
        block = file.peek(1 << 12)[: 1 << 12]  # type: ignore[attr-defined]
        for signature, kind in _BINARY.items():
            if block.startswith(signature):
                raise DataError(english(f"reason.file_is_{kind}", path=path))
        if codecs.lookup(check_encoding(encoding)).name == "utf-8":
            _reject_binary(block, path)
            encoding = "utf-8-sig"
        text = io.TextIOWrapper(file, encoding=encoding, errors=errors, newline=None)
        try:
            yield text
        except UnicodeError as error:
            raise _make_encoding_error(path, encoding) or error from error
        finally:
            text.detach()


def check_encoding(name: str) -> str:
    """Return `name` if it is a text encoding of Python. Raises DataError otherwise."""
    try:
        "".encode(name)
    except (LookupError, ValueError):
        raise DataError(
            f'there is no encoding "{name}"; some are utf-8, utf-16, {", ".join(_FREQUENT_CHARS)}.'
        ) from None
    return name


# The first bytes of binary formats that may have no zero byte, and would look like text.
_BINARY = {b"%PDF-": "pdf", b"{\\rtf": "rtf", b"PK\x03\x04": "zip"}


def _reject_binary(block: bytes, path: str | Path) -> None:
    """Raise DataError if `block`, the start of a file, has a UTF-16 BOM or contains a zero byte."""
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path} is UTF-16, not UTF-8: {_make_encoding_hint('utf-16')}")
    zero = block.find(b"\0")
    if zero >= 0:
        raise DataError(english("reason.file_is_binary", path=path, place=zero))


# The most frequent characters of the languages that use each encoding.
_KANA = "\u306e\u306b\u306f\u3092\u305f\u304c\u3067\u3068\u3057\u3066"
_HAN = "\u7684\u4e00\u662f\u4e0d\u4e86\u5728\u4eba\u6709\u6211\uff0c\u3002"
_FREQUENT_CHARS = {
    "gb18030": _HAN + "\u56fd\u4e2a\u8fd9",
    "big5": _HAN + "\u570b\u500b\u9019",
    "shift_jis": _KANA,
    "euc-jp": _KANA,
    "euc-kr": "\uc774\ub2e4\ub294\uc744\uc758\uc5d0\uac00\uace0\ub97c\ud558",
    "windows-1251": "\u043e\u0435\u0430\u0438\u043d\u0442\u0441\u0440\u0432",
    "windows-1252": "\u00e9\u00e8\u00e0\u00e7\u00ea\u00e4\u00f6\u00fc\u00df\u00f1\u00f3\u00ed",
}


def _guess_encoding(data: bytes) -> str | None:
    """Guess the encoding of `data` by decoding it with each encoding in `_FREQUENT_CHARS`.

    Returns the encoding with which the text has the most occurrences of the frequent characters
    listed for that encoding. Returns None if no listed character occurs.
    """
    counts = {}
    for name, frequent in _FREQUENT_CHARS.items():
        with contextlib.suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(name)().decode(data)
            counts[name] = sum(map(text.count, frequent))
    best = max(counts, key=lambda name: counts[name], default=None)
    return best if best and counts[best] else None


def _make_encoding_hint(encoding: str) -> str:
    """Return the remedy for an error message: how to give the encoding, or to convert the file."""
    return f"give --encoding {encoding} (of a recipe data.encoding), or convert it to UTF-8."


def _make_encoding_error(path: str | Path, encoding: str) -> DataError | None:
    """Return an error for a file whose bytes are not valid in the given encoding.

    For UTF-8, the file is read again and the error names the first invalid line. Returns None if
    all lines are valid this time.
    """
    if not encoding.startswith("utf-8"):
        return DataError(f"{path} is not valid {encoding}: give another encoding.")
    if str(path) == STDIN:
        return DataError(
            f"Standard input is not valid UTF-8: convert it, or {_make_encoding_hint('NAME')}"
        )
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                rest = file.read(_BLOCK)
                if error.reason == "unexpected end of data" and not rest:
                    return DataError(english("reason.file_ends_early", path=path, line=number))
                data = line[: error.start + _BLOCK] + rest
                guess = _guess_encoding(data)
                key = "reason.file_has_encoding" if guess else "reason.file_has_other_encoding"
                values: dict[str, object] = {"path": path, "line": number}
                values |= {"byte": line[error.start], "place": error.start}
                values |= {"encoding": guess, "option": guess}
                return DataError(english(key, **values))
    return None


def sibling_folders(path: Path) -> list[Path]:
    """Return the folders next to `path` in its parent folder, except hidden folders."""
    return [one for one in path.parent.glob("[!.]*") if one.is_dir() and one.name != path.name]


def did_you_mean_folder(path: Path) -> str:
    """Return a suggestion of a similarly named folder next to `path`, for an error message.

    Returns "" if no name is similar.
    """
    beside = {one.name: one for one in sibling_folders(path)}
    return "".join(f' Did you mean "{beside[name]}"?' for name in nearest_name(path.name, beside))


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error was caused by a full disk, a disk quota or a file size limit."""
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return full or "No space left" in str(error) or "os error 28" in str(error)
