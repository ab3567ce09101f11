"""An even sample of a corpus within a budget of bytes, for training a tokenizer.

Plain files are sought: blocks at even distances over all of them, cut at line ends. Anything else
is read once and sampled by priority: every piece (a text, or a part of a long one) draws a number
from its place and the seed, and the pieces with the smallest numbers that fit the budget stay, in
their order. Either way each part of the corpus has the same chance, and nothing but the budget is
ever held in memory.
"""

from __future__ import annotations

import gzip
import heapq
import io
import lzma
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from trivium.errors import DataError

BLOCK = 1 << 16  # bytes read at a time
PIECE = 1 << 14  # characters of a long text that are kept or dropped together
PACKED = (".gz", ".xz", ".zst")

Pieces = Callable[[], Iterator[str]]


def sample_texts(texts: Iterable[str], budget: int, seed: int) -> Pieces:
    """Keep an even sample of an iterable, which is read once.

    Returns a function that gives the kept pieces anew at each call.
    """
    rng = random.Random(seed)
    kept: list[tuple[float, int, bytes]] = []
    size = 0
    limit = 2.0
    for place, piece in enumerate(_pieces(texts)):
        priority = rng.random()
        if priority >= limit:
            continue
        data = piece.encode("utf-8", errors="replace")
        heapq.heappush(kept, (-priority, place, data))
        size += len(data)
        while size > budget and len(kept) > 1:
            dropped, _, data = heapq.heappop(kept)
            size -= len(data)
            limit = -dropped
    kept.sort(key=lambda entry: entry[1])
    return lambda: (data.decode("utf-8") for _, _, data in kept)


def sample_files(files: Sequence[Path], budget: int, seed: int) -> Pieces:
    """An even sample of text files; .gz, .xz and .zst are unpacked on the way.

    Raises DataError for a path that is no file, and for bytes that are not UTF-8, at their place.
    """
    for path in files:
        if not path.is_file():
            raise DataError(f"There is no file {path}.")
    if any(path.suffix.lower() in PACKED for path in files):
        return sample_texts((piece for path in files for piece in _read(path)), budget, seed)
    sizes = [path.stat().st_size for path in files]
    if sum(sizes) <= budget:
        return lambda: (piece for path in files for piece in _read(path))
    return lambda: _blocks(files, sizes, budget, seed)


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Texts as they are, long ones in parts that end before a space where there is one."""
    for text in texts:
        start = 0
        while len(text) - start > PIECE:
            end = max(
                text.rfind(" ", start + 1, start + PIECE),
                text.rfind("\n", start + 1, start + PIECE),
            )
            end = end if end > start else start + PIECE
            yield text[start:end]
            start = end
        if start < len(text):
            yield text[start:] if start else text


def _open(path: Path) -> BinaryIO:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    if suffix == ".zst":
        packed = open(path, "rb")  # noqa: SIM115 (closed with the reader around it)
        reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, reader), BLOCK))
    return open(path, "rb")


def _read(path: Path) -> Iterator[str]:
    """A file in runs of whole lines of about one block, so that memory never follows its size."""
    try:
        with _open(path) as file:
            offset = 0
            while block := file.read(BLOCK):
                block += file.readline(BLOCK)
                block += _rest_of_character(file, block)
                yield _decode(block, path, offset)
                offset += len(block)
    except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error


def _rest_of_character(file: BinaryIO, block: bytes) -> bytes:
    """The bytes that complete a UTF-8 character cut at the end of a block without a line end."""
    for back in range(1, min(4, len(block)) + 1):
        byte = block[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return file.read(length - back) if length > back else b""
    return b""


def _decode(block: bytes, path: Path, offset: int) -> str:
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text: byte 0x{block[error.start]:02x} at offset "
            f"{offset + error.start}. Save it as UTF-8 first."
        ) from error


def _blocks(files: Sequence[Path], sizes: Sequence[int], budget: int, seed: int) -> Iterator[str]:
    """Blocks at even distances over the joined files, each from a line's start to a line's end."""
    block = min(BLOCK, max(1, budget // 16))
    count = max(1, budget // block)
    stride = sum(sizes) / count
    place = random.Random(seed).random() * max(0.0, stride - block)
    first = 0
    for path, size in zip(files, sizes, strict=True):
        with open(path, "rb") as file:
            while place < first + size:
                text = _block(file, path, int(place - first), block)
                if text:
                    yield text
                place += stride
        first += size


def _block(file: BinaryIO, path: Path, start: int, block: int) -> str:
    file.seek(start)
    data = file.read(block)
    if start:
        line_end = data.find(b"\n")
        cut = line_end + 1 if 0 <= line_end < len(data) // 2 else _character_start(data)
        start += cut
        data = data[cut:]
    line_end = data.rfind(b"\n")
    if line_end >= len(data) // 2:
        data = data[: line_end + 1]
    elif data:
        data += _rest_of_character(file, data)
    return _decode(data, path, start)


def _character_start(data: bytes) -> int:
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
