"""Training and validation: the split of every document, and exact deduplication.

Both follow from a hash of the document's text only, so that adding or reordering data moves no
document between training and validation. If validation has its own paths, the paths decide the
split, and the hash only finds repeats and documents that are on both sides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from trivium.config import option
from trivium.data.documents import PART, ReadOptions, list_texts, read_parts, unescape
from trivium.data.shards import TRAIN, VALIDATION
from trivium.data.sources import Paths, Source, source_key
from trivium.errors import DataError
from trivium.files import replace_file

_NEAR = 200  # characters in which a line feed or space is looked for


@dataclasses.dataclass(frozen=True, slots=True)
class CorpusOptions(ReadOptions):
    """How a corpus is read and split.

    `validation` is a fraction of the documents in [0, 1), which are chosen by a hash of their text;
    or the paths of the validation text. `control_tokens` are special tokens whose names in the text
    always stand for the token.
    """

    validation: float | Paths = 0.1
    keep_duplicates: bool = option(False, "keep exact repeats of a document")
    special_tokens: Literal["text", "special"] = option(
        "text",
        "what the name of a special token in the text is, such as [SEP]: text, or special: the "
        "control token",
    )
    control_tokens: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class SplitSources:
    """The sources to read, in order, each with its split.

    Args:
        sources: the sources.
        skipped: files of folders that are not read.
        fraction: the share of documents that the hash assigns to validation; 0 if validation has
            its own paths or is not wanted.
        cut: for a corpus of a single document, the number of characters at its beginning that are
            for training; the rest is for validation. Otherwise 0.
        head: the hash of these first characters.
    """

    sources: tuple[Source, ...]
    skipped: tuple[str, ...]
    fraction: float
    cut: int = 0
    head: int = 0

    @functools.cached_property
    def total_bytes(self) -> int:
        """Bytes of all sources as stored."""
        return sum(source.size for source in self.sources)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the splits that there are to be."""
        has_paths = any(source.split == VALIDATION for source in self.sources)
        return (TRAIN, VALIDATION) if has_paths or self.fraction else (TRAIN,)

    def assign(self, source: Source, digest: int) -> str:
        """Return the split of a document: that of its source, else the one its hash decides."""
        validation = digest != self.head if self.cut else digest < round(self.fraction * 2**64)
        return source.split or (VALIDATION if validation else TRAIN)

    def read_parts(self, source: Source, options: ReadOptions) -> Iterator[tuple[str, bool]]:
        """Yield the documents of a source in parts, as `documents.read_parts` does.

        A single document becomes two documents at the `cut`.
        """
        start = 0
        for part, is_last in read_parts(source, options):
            border = self.cut - start
            start += len(part)
            if 0 < border <= len(part):
                yield part[:border], True
                part = part[border:]
            if part or is_last:
                yield part, is_last


def split_sources(paths: Paths, validation: float | Paths) -> SplitSources:
    """List the sources of training and validation. The paths of validation, if any, come first.

    Raises DataError if the fraction is out of range or a path cannot be read.
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
    validation_list = list_texts(validation)
    keys = {source_key(source) for source in validation_list.sources}
    rest = [source for source in train.sources if source_key(source) not in keys]
    if not rest:
        raise DataError("Every training file is a validation file too: no training text is left.")
    sources = _in_split(validation_list.sources, VALIDATION) + _in_split(rest, TRAIN)
    return SplitSources(sources, train.skipped + validation_list.skipped, 0.0)


def plan_corpus(paths: Paths, options: CorpusOptions) -> SplitSources:
    """List the sources as `split_sources` does, and choose the cut of a single document.

    The cut is the first place after a line feed, else before a space, shortly after the training
    share of the text.
    """
    plan = split_sources(paths, options.validation)
    if not plan.fraction or not all(source.modified for source in plan.sources):
        return plan
    with contextlib.suppress(DataError):  # reported when the texts themselves are read
        size, has_ended = 0, False
        for part, is_last in _read_all(plan, options):
            if has_ended:
                return plan
            size, has_ended = size + len(part), is_last
        cut, start, digest = size - round(size * plan.fraction), 0, TextDigest()
        for part, _ in _read_all(plan, options) if 0 < cut < size else ():
            if start + len(part) > cut:
                near = part[cut - start :][:_NEAR]
                border = near.find("\n") + 1 or max(near.find(" "), 0)
                cut += border if cut + border < size else 0
                digest.update(part[: cut - start])
                return dataclasses.replace(plan, cut=cut, head=digest.value)
            start += len(part)
            digest.update(part)
    return plan


def _read_all(plan: SplitSources, options: CorpusOptions) -> Iterator[tuple[str, bool]]:
    for source in plan.sources:
        yield from read_parts(source, options)


def _in_split(sources: Iterable[Source], split: str | None) -> tuple[Source, ...]:
    return tuple(dataclasses.replace(source, split=split) for source in sources)


def text_digest(text: str) -> int:
    """Return the 64-bit hash that identifies a document, and that decides its split.

    Two documents that differ only in line ends, in spaces at the ends of lines or in their Unicode
    form (NFC, NFD) have the same hash. Labelled examples hash their groups with this function, too.
    """
    digest = TextDigest()
    digest.update(text)
    return digest.value


def _is_border(text: str, index: int) -> bool:
    """Return whether the text before an index and the text after it can be normalized apart."""
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
        # A part may end within a line end, a run of spaces or a combined character: its end waits.
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
    """Yield the documents that `prepare` keeps, as pairs (split, text), in the same order.

    Exact repeats within a split are left out unless `keep_duplicates` is set. A training document
    that comes after the same document of validation is always left out. Memory is one 64-bit digest
    per document, about 80 bytes in a set of Python integers. Two texts with the same digest are
    expected once in about six billion documents.
    """
    return ((split, "".join(parts)) for split, parts in _read_splits(paths, options))


def _read_splits(paths: Paths, options: CorpusOptions) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the documents of `read_splits` in parts, each to be read before the next."""
    seen: dict[str, set[int]] = {TRAIN: set(), VALIDATION: set()}
    for split, parts, digest in _assign_all(paths, options):
        repeats = digest in seen[split] and not options.keep_duplicates
        if not repeats and (split == VALIDATION or digest not in seen[VALIDATION]):
            seen[split].add(digest)
            yield split, parts


def _assign_all(paths: Paths, options: CorpusOptions) -> Iterator[tuple[str, Iterable[str], int]]:
    """Yield the split, the parts and the digest of every document."""
    plan = plan_corpus(paths, options)
    for source in plan.sources:
        for parts, digest in _with_digests(plan.read_parts(source, options)):
            yield plan.assign(source, digest), parts, digest


def _with_digests(parts: Iterator[tuple[str, bool]]) -> Iterator[tuple[Iterable[str], int]]:
    """Yield documents with their digests. The parts of a long document are kept in a file."""
    for part, is_last in parts:
        if is_last:
            yield [part], text_digest(part)
            continue
        digest = TextDigest()
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
            for each, ends in itertools.chain([(part, is_last)], parts):
                digest.update(each)
                file.write(each)
                if ends:
                    break
            file.seek(0)
            yield iter(functools.partial(file.read, PART), ""), digest.value


def validation_digests(paths: Paths, options: CorpusOptions) -> set[int]:
    """Return the digests of the documents that are held out."""
    return {digest for split, _, digest in _assign_all(paths, options) if split == VALIDATION}


def training_texts(paths: Paths, options: CorpusOptions = CorpusOptions()) -> Iterator[str]:
    """Yield the texts of the training split, to train a tokenizer on. Long texts come in parts."""
    for split, parts in _read_splits(paths, options):
        if split == TRAIN:
            yield from parts


def write_split_texts(
    paths: Paths, out: str | Path, options: CorpusOptions = CorpusOptions()
) -> dict[str, Path]:
    """Write the splits as `train.txt` and `validation.txt` in the folder `out`.

    The files can be read with the same separator ("file" becomes "blank"). If a document contains
    the separator, its blank lines (for "line", its line feeds) are removed.

    Returns the file of each split.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    names = split_sources(paths, options.validation).names
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(replace_file(folder / f"{name}.txt")) for name in names}
        for split, text in read_splits(paths, options):
            files[split].write(_with_separator(text, options.separator).encode())
    return {name: folder / f"{name}.txt" for name in names}


def _with_separator(text: str, separator: str) -> str:
    """Return a document with the separator after it."""
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    if separator == "line":
        return " ".join(lines) + "\n"
    if separator in ("blank", "file"):
        return "\n".join(lines) + "\n\n"
    return f"{text}\n{unescape(separator)}\n"
