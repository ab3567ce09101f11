"""Reading bytes: compressed files, UTF-8 with exact error places, plain text into documents."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import zstandard

from trivium.errors import DataError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCK = 1 << 18
_ESCAPES = (("\\n", "\n"), ("\\t", "\t"))
_STDIN = "-"


class Digest(Protocol):
    """What takes the bytes of a file as they are read, such as a `hashlib` object."""

    def update(self, data: bytes, /) -> object:
        """Take the next bytes."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class ReadOptions:
    """How documents are parted, which field of a record is the text, what invalid UTF-8 does."""

    separator: str = "blank"
    text_field: str = "text"
    errors: str = "strict"

    def __post_init__(self) -> None:
        if not self.separator:
            raise DataError("The separator is empty; it is line, blank, file or a string.")
        if self.errors not in ("strict", "replace"):
            raise DataError(f'errors is "strict" or "replace", not "{self.errors}".')

    def field_of(self, record: Mapping[str, object], where: str) -> Iterator[str]:
        """The text of a record, none where it is null. `where` names the place for the error."""
        if self.text_field not in record:
            raise DataError(
                f'{where} has no field "{self.text_field}"; it has '
                f"{', '.join(map(str, record)) or 'no field'}. Choose one with --text-field."
            )
        text = record[self.text_field]
        if text is None:
            return
        if not isinstance(text, str):
            raise DataError(
                f'The field "{self.text_field}" of {where} is a {type(text).__name__}, not a text.'
            )
        yield self._encodable(text, where).replace("\r\n", "\n")

    def _encodable(self, text: str, where: str) -> str:
        """The text without lone surrogates, which JSON can hold and UTF-8 cannot."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if self.errors == "strict":
                raise DataError(
                    f"{where} holds half a surrogate pair at character {error.start}, which is no "
                    "text. Mend it, or go on with --errors replace."
                ) from error
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text


class _DigestingFile(io.RawIOBase):
    """A raw file that shows everything it reads to a digest."""

    def __init__(self, file: BinaryIO, digest: Digest) -> None:
        super().__init__()
        self._file = file
        self._digest = digest

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Read into `buffer`, at most its length."""
        view = memoryview(buffer)
        data = self._file.read(len(view))
        self._digest.update(data)
        view[: len(data)] = data
        return len(data)


class _ZstandardFile(io.RawIOBase):
    """The plain bytes of a zstandard file of any number of frames.

    The library's own reader takes a file that was cut short for a whole one.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._stored = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Read into `buffer`, at most its length; EOFError where the last frame ends early."""
        while not self._plain:
            self._stored = self._stored or self._file.read(_BLOCK)
            if not self._stored:
                if self._frame is not None:
                    raise EOFError("the compressed data ends early")
                return 0
            self._frame = self._frame or _zstandard_frame()
            self._plain = memoryview(self._frame.decompress(self._stored))
            self._stored = b""
            if self._frame.eof:
                self._stored = self._frame.unused_data
                self._frame = None
        view = memoryview(buffer)
        count = min(len(view), len(self._plain))
        view[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count


def _zstandard_frame() -> zstandard.ZstdDecompressionObj:
    """A decompressor of one frame, with whatever window it was written with."""
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


@contextlib.contextmanager
def open_bytes(name: str, digest: Digest | None = None) -> Iterator[BinaryIO]:
    """The uncompressed bytes of a file, or of standard input for "-".

    Raises DataError where the file cannot be opened or its compression is damaged.
    """
    with contextlib.ExitStack() as stack:
        try:
            if name == _STDIN:
                stored: BinaryIO = sys.stdin.buffer
            else:
                stored = stack.enter_context(open(name, "rb"))
            if digest is not None:
                stored = io.BufferedReader(_DigestingFile(stored, digest), _BLOCK)
            plain = cast(BinaryIO, _decompressed(stored, Path(name).suffix.lower()))
            yield plain
            while digest is not None and stored.read(_BLOCK):
                pass
        except (lzma.LZMAError, zstandard.ZstdError, zlib.error, EOFError) as error:
            raise DataError(f"{name} is damaged or not what its suffix says: {error}.") from error
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror or error}.") from error


def _decompressed(stored: BinaryIO, suffix: str):
    match suffix:
        case ".gz":
            return gzip.GzipFile(fileobj=stored)
        case ".xz":
            return lzma.LZMAFile(stored)
        case ".zst":
            return io.BufferedReader(_ZstandardFile(stored), _BLOCK)
        case _:
            return stored


def decoded_blocks(name: str, errors: str, digest: Digest | None) -> Iterator[str]:
    """A file as blocks of text: UTF-8 without its byte order mark, lines ended by line feeds.

    Raises DataError at a binary file, and at invalid UTF-8 unless `errors` is "replace".
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    with open_bytes(name, digest) as file:
        block = file.read(_BLOCK)
        _refuse_binary(block, name)
        start = len(codecs.BOM_UTF8) if block.startswith(codecs.BOM_UTF8) else 0
        block = block[start:]
        while True:
            waiting = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name} is not valid UTF-8 at byte {start - waiting + error.start} "
                    f"(0x{error.object[error.start]:02x}). Mend the file, or go on with "
                    "--errors replace, which reads such bytes as U+FFFD."
                ) from error
            yield newlines.decode(text, final=not block)
            if not block:
                return
            start += len(block)
            block = file.read(_BLOCK)


def _refuse_binary(block: bytes, name: str) -> None:
    """Raise DataError where the first block of a file cannot be UTF-8 text."""
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{name} is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8.")
    at = block.find(b"\0")
    if at >= 0:
        raise DataError(f"{name} is a binary file (a zero byte at {at}), not text.")


def decoded_lines(name: str, errors: str, digest: Digest | None) -> Iterator[str]:
    """The lines of a file without their ends; only a line feed ends a line."""
    pending: list[str] = []
    for block in decoded_blocks(name, errors, digest):
        first, *others = block.split("\n")
        pending.append(first)
        if others:
            yield "".join(pending)
            pending = [others.pop()]
            yield from others
    last = "".join(pending)
    if last:
        yield last


def read_text(name: str, options: ReadOptions, digest: Digest | None) -> Iterator[str]:
    """The documents of a plain text file, parted by `options.separator`; some may be blank."""
    match options.separator:
        case "line":
            return decoded_lines(name, options.errors, digest)
        case "blank":
            return _paragraphs(decoded_lines(name, options.errors, digest))
        case "file":
            return _whole(decoded_blocks(name, options.errors, digest))
        case separator:
            blocks = decoded_blocks(name, options.errors, digest)
            return _parted(blocks, unescaped(separator))


def unescaped(separator: str) -> str:
    """A separator as the command line gives it, with backslash-n and backslash-t resolved."""
    for written, meant in _ESCAPES:
        separator = separator.replace(written, meant)
    return separator


def _whole(blocks: Iterator[str]) -> Iterator[str]:
    parts = list(blocks)
    # Before joining: stripping a text copies it.
    parts[0], parts[-1] = parts[0].lstrip("\n"), parts[-1].rstrip("\n")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
        parts[-1] = parts[-1].rstrip("\n")
    text = "".join(parts)
    del parts
    yield text


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    """Runs of lines between blank lines, joined by line feeds."""
    paragraph: list[str] = []
    for line in lines:
        if line and not line.isspace():
            paragraph.append(line)
        elif paragraph:
            yield "\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield "\n".join(paragraph)


def _parted(blocks: Iterator[str], separator: str) -> Iterator[str]:
    """The texts between separators, without the line feeds around them."""
    pending: list[str] = []
    carry = ""
    keep = len(separator) - 1
    for block in blocks:
        first, *others = (carry + block).split(separator)
        if others:
            yield "".join([*pending, first]).strip("\n")
            pending = []
            first = others.pop()
            for text in others:
                yield text.strip("\n")
        # The last characters may be the start of a separator that the next block ends.
        cut = max(len(first) - keep, 0)
        carry = first[cut:]
        pending.append(first[:cut])
    yield "".join([*pending, carry]).strip("\n")
