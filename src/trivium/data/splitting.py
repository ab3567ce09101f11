"""Training and validation: every document's split, and exact deduplication.

Both follow from a hash of the document's text alone, so that adding or reordering data moves
nothing between training and validation. Where validation has paths of its own, these decide the
split, and the hash only drops repeats and what both sides have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from trivium.config import option
from trivium.data.documents import ReadOptions, list_texts, read_source, unescape
from trivium.data.shards import TRAIN, VALIDATION
from trivium.data.sources import Paths, Source, source_key
from trivium.errors import DataError
from trivium.files import replace_file


@dataclasses.dataclass(frozen=True, slots=True)
class CorpusOptions(ReadOptions):
    """How a corpus is read and split.

    `validation` is a fraction of the documents, in [0, 1), chosen by a hash of their text; or
    paths.
    """

    validation: float | Paths = 0.1
    keep_duplicates: bool = option(False, "keep exact repeats of a document")


@dataclasses.dataclass(frozen=True)
class SplitSources:
    """The sources to read, in order, each with its split.

    `fraction` is the share of documents that the hash assigns to validation, 0 where validation
    has paths of its own or is not wanted.
    """

    sources: tuple[Source, ...]
    skipped: tuple[str, ...]
    fraction: float

    @functools.cached_property
    def total_bytes(self) -> int:
        """Bytes of all sources as stored."""
        return sum(source.size for source in self.sources)

    @property
    def wants_validation(self) -> bool:
        """Whether there is to be a validation split."""
        return self.fraction > 0 or any(source.split == VALIDATION for source in self.sources)

    def assign(self, source: Source, text: str) -> tuple[str, int, int]:
        """The split of a document, the hash that decides it, and the bytes of its text."""
        digest, size = text_digest(text)
        by_hash = VALIDATION if digest < round(self.fraction * 2**64) else TRAIN
        return source.split or by_hash, digest, size


def split_sources(paths: Paths, validation: float | Paths) -> SplitSources:
    """List the sources of training and validation; validation comes first where it has paths.

    Raises DataError where the fraction is out of range or a path cannot be read.
    """
    train = list_texts(paths)
    if isinstance(validation, int | float):
        if not 0 <= validation < 1:
            raise DataError(
                "validation is a fraction of the documents from 0 up to (excluding) 1, or a path; "
                f"not {validation}."
            )
        sources = _in_split(train.sources, None if validation else TRAIN)
        return SplitSources(sources, train.skipped, float(validation))
    heldout = list_texts(validation)
    keys = {source_key(source) for source in heldout.sources}
    rest = [source for source in train.sources if source_key(source) not in keys]
    if not rest:
        raise DataError("Every training file is a validation file too: no training text is left.")
    sources = _in_split(heldout.sources, VALIDATION) + _in_split(rest, TRAIN)
    return SplitSources(sources, train.skipped + heldout.skipped, 0.0)


def _in_split(sources: Iterable[Source], split: str | None) -> tuple[Source, ...]:
    return tuple(dataclasses.replace(source, split=split) for source in sources)


def text_digest(text: str) -> tuple[int, int]:
    """Return the 64-bit hash that identifies a document, and its number of UTF-8 bytes.

    Two documents that differ only in line ends, in spaces at the ends of lines or in their Unicode
    form (NFC, NFD) have the same hash. The hash decides the split.
    """
    return normalized_digest(text), len(text.encode())


def normalized_digest(text: str) -> int:
    """Return the 64-bit hash of a text without differences that a reader cannot see.

    See `text_digest`. Labelled examples hash their groups with this function, too.
    """
    digest = TextDigest()
    digest.update(text)
    return digest.value


def _is_border(text: str, index: int) -> bool:
    """Whether the parts of a text before and after an index can be normalized one by one."""
    before, after = text[index - 1], text[index]
    if before.isspace() or after.isspace():
        return before == "\n"
    # Vowels and final consonants of Hangul are combined with the letter before them.
    is_jamo = "\u1160" <= after <= "\u11ff"
    return unicodedata.category(after)[0] in "LNPS" and not is_jamo


class TextDigest:
    """The hash of a text that arrives in parts: `update` with each part, then read `value`."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._pending = ""
        self._ends = ""

    def update(self, part: str) -> None:
        """Add the next part of the text."""
        text = self._pending + part
        # A part may end inside of a line end, of spaces or of a character: the rest waits.
        border = next((i for i in range(len(text) - 1, 0, -1) if _is_border(text, i)), 0)
        self._pending = text[border:]
        self._add(text[:border])

    def _add(self, text: str) -> None:
        """Hash a stretch of text that ends at a border."""
        text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
        lines = self._ends + "\n".join(map(str.rstrip, text.split("\n")))
        visible = lines.rstrip("\n")
        self._ends = lines[len(visible) :]
        self._hash.update(visible.encode())

    @property
    def value(self) -> int:
        """The hash of the whole text. No part can follow."""
        self._add(self._pending)
        return int.from_bytes(self._hash.digest(), "little")


def read_splits(
    paths: Paths, options: CorpusOptions = CorpusOptions()
) -> Iterator[tuple[str, str]]:
    """The documents that `prepare` keeps, as pairs (split, text), in its order.

    Exact repeats in a split are left out unless `keep_duplicates`, training documents that
    validation has before them always. Memory is one 64-bit digest per document, about 80 bytes in a
    set of Python integers. Two texts with the same digest are expected once in about six billion
    documents.
    """
    plan = split_sources(paths, options.validation)
    seen: dict[str, set[int]] = {TRAIN: set(), VALIDATION: set()}
    for source in plan.sources:
        for text in read_source(source, options):
            split, digest, _ = plan.assign(source, text)
            repeats = digest in seen[split] and not options.keep_duplicates
            if not repeats and (split == VALIDATION or digest not in seen[VALIDATION]):
                seen[split].add(digest)
                yield split, text


def training_texts(paths: Paths, options: CorpusOptions = CorpusOptions()) -> Iterator[str]:
    """The texts of the training split, to train a tokenizer on."""
    return (text for split, text in read_splits(paths, options) if split == TRAIN)


def write_split_texts(
    paths: Paths, out: str | Path, options: CorpusOptions = CorpusOptions()
) -> dict[str, Path]:
    """Write the splits as `train.txt` and `validation.txt` in the folder `out`.

    The files read back with the same separator ("file" becomes "blank"). Where a document holds
    the separator itself, its blank lines (or, for "line", its line feeds) are removed.
    Returns the file of each split.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    names = [TRAIN]
    if split_sources(paths, options.validation).wants_validation:
        names.append(VALIDATION)
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(replace_file(folder / f"{name}.txt")) for name in names}
        for split, text in read_splits(paths, options):
            files[split].write(_with_separator(text, options.separator).encode())
    return {name: folder / f"{name}.txt" for name in names}


def _with_separator(text: str, separator: str) -> str:
    """A document and the separator after it."""
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    if separator == "line":
        return " ".join(lines) + "\n"
    if separator in ("blank", "file"):
        return "\n".join(lines) + "\n\n"
    return f"{text}\n{unescape(separator)}\n"
