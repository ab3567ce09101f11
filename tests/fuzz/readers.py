"""The table of readers that are fuzzed; `data_readers` and `model_readers` fill it."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from damage import Files

from trivium.model_folder import CHECKSUMS, write_checksums
from trivium.text import Tokenizer

TEXT = (
    "The first line, of two.\nAnd the second one.\n\n"
    "北京 2008: a caf\u00e9, naïve \U0001f600 words.\n\n\tA third, with a tab\tinside.\n"
)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Fine."},
]


@dataclass(frozen=True)
class Reader:
    """What is read, and how.

    Args:
        files: makes the files of a good folder.
        read: reads the folder and uses what it read.
        summed: whether damage is followed by new checksums, so that it reaches what is behind them.
        alone: read every file or folder at the top in a folder of its own.
    """

    files: Callable[[], Files]
    read: Callable[[Path], Any]
    summed: bool = False
    alone: bool = False


READERS: dict[str, Reader] = {}
"""Name -> reader."""


def reader(
    name: str, files: Callable[[], Files], *, summed: bool = False, alone: bool = False
) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    def add(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        READERS[name] = Reader(functools.cache(files), read, summed, alone)
        return read

    return add


@functools.cache
def small_tokenizer(kind: str) -> Tokenizer:
    """Return a small tokenizer: 290 tokens where every byte is a token, else 150."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    if kind in ("byte-bpe", "unigram"):
        specials = ("<pad>", "</s>", "<unk>", "<s>")
    size = 290 if kind == "byte-bpe" else 150
    texts = [TEXT, "the cat sat on the mat"]
    keys: dict[str, Any] = {"vocab_size": size, "special_tokens": specials}
    return Tokenizer.train(kind, texts=texts, progress=False, **keys)


class CodeRanError(BaseException):
    """Not caught by a reader that catches every Exception."""


def ran_code() -> None:
    """Called by damaged pickles."""
    raise CodeRanError


def made(make: Callable[[Path], Any]) -> Callable[[], Files]:
    """The files that a function writes into an empty folder, with folders in their names."""

    def files() -> Files:
        with tempfile.TemporaryDirectory() as name:
            make(Path(name))
            paths = sorted(path for path in Path(name).rglob("*") if path.is_file())
            return {str(path.relative_to(name)): path.read_bytes() for path in paths}

    return files


def sum_again(folder: Path) -> None:
    """Write the checksums of a folder anew, those of its sub-folders too."""
    for file in [*folder.rglob(CHECKSUMS)]:
        try:
            names = json.loads(file.read_bytes())
            write_checksums(file.parent, [name for name in names if (file.parent / name).exists()])
        except (ValueError, TypeError, OSError, RecursionError):
            return
