"""Assignment of documents to the training or validation split, and exact deduplication.

Both depend only on a hash of the document's text. Adding or reordering data therefore moves no
document from one split to the other. If the user gives separate paths for validation, the paths
determine the split. The hash is then used only to find duplicates, including documents that occur
in both splits.
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
from trivium.data.documents import (
    PART,
    ReadOptions,
    list_text_sources,
    read_parts,
    resolve_escapes,
    select_parts,
)
from trivium.data.shards import TRAIN, VALIDATION
from trivium.data.sources import Paths, Source, identify_source
from trivium.errors import DataError
from trivium.files import replace_file

_MIN_SECTION = 1 << 12  # characters that are hashed together
_SEARCH_LENGTH = 200  # characters that are searched for a line feed or space


@dataclasses.dataclass(frozen=True, slots=True)
class CorpusOptions(ReadOptions):
    """Options for reading and splitting a corpus.

    `validation` is either the fraction of documents for validation, in [0, 1), or the paths of
    separate validation texts. With a fraction, a hash of each document's text decides whether the
    document belongs to validation. `control_tokens` are special tokens whose names in a text are
    always encoded as special tokens.
    """

    validation: float | Paths = 0.1
    keep_duplicates: bool = option(False, "keep exact duplicates of a document")
    special_tokens: Literal["text", "special"] = option(
        "text",
        "encode names of special tokens in the text, such as [SEP], as text or as special tokens",
    )
    control_tokens: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class SplitSources:
    """The sources of a corpus in reading order, and how their documents are split.

    Args:
        sources: the sources, each with its split.
        skipped: the files in folders that are not read.
        fraction: the fraction of documents that the hash assigns to validation. It is 0 if there
            are separate validation paths, or no validation.
        cut: if the corpus is a single document, its first `cut` characters are for training, and
            the rest is for validation. Otherwise 0.
        head: the hash of the first `cut` characters.
    """

    sources: tuple[Source, ...]
    skipped: tuple[str, ...]
    fraction: float
    cut: int = 0
    head: int = 0

    @functools.cached_property
    def total_bytes(self) -> int:
        """The total size of the sources in bytes, as stored."""
        return sum(source.size for source in self.sources)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the splits of the corpus."""
        has_paths = any(source.split == VALIDATION for source in self.sources)
        return (TRAIN, VALIDATION) if has_paths or self.fraction else (TRAIN,)

    def assign_split(self, source: Source, digest: int) -> str:
        """Return the split of a document, "train" or "validation".

        If the source has a split, all its documents belong to that split. Otherwise, the split
        depends on `digest`, the hash of the document.
        """
        validation = digest != self.head if self.cut else digest < round(self.fraction * 2**64)
        return source.split or (VALIDATION if validation else TRAIN)

    def read_parts(self, source: Source, options: ReadOptions) -> Iterator[tuple[str, bool]]:
        """Yield the documents of a source in parts, as pairs (part, is_last).

        `is_last` is True for the last part of each document. A corpus of a single document is
        divided into two documents after `cut` characters.
        """
        start = 0
        for part, is_last in read_parts(source, options):
            boundary = self.cut - start
            start += len(part)
            if 0 < boundary <= len(part):
                yield part[:boundary], True
                part = part[boundary:]
            if part or is_last:
                yield part, is_last


def split_sources(paths: Paths, validation: float | Paths) -> SplitSources:
    """List the sources of a corpus, and set the split of each source.

    If `validation` is a fraction above 0, the split is None: a hash will decide for each document.
    If `validation` contains paths, their sources come first.

    Raises DataError if the validation fraction is out of range, if a path cannot be read, or if all
    training files are validation files, too.
    """
    train = list_text_sources(paths)
    if isinstance(validation, int | float):
        if not 0 <= validation < 1:
            raise DataError(
                "validation is a fraction of the documents from 0 up to (excluding) 1, or a path; "
                f"not {validation}."
            )
        sources = _set_split(train.sources, None if validation else TRAIN)
        return SplitSources(sources, train.skipped, float(validation))
    validation_list = list_text_sources(validation)
    keys = {identify_source(source) for source in validation_list.sources}
    rest = [source for source in train.sources if identify_source(source) not in keys]
    if not rest:
        raise DataError("Every training file is a validation file too: no training text is left.")
    sources = _set_split(validation_list.sources, VALIDATION) + _set_split(rest, TRAIN)
    return SplitSources(sources, train.skipped + validation_list.skipped, 0.0)


def plan_corpus(paths: Paths, options: CorpusOptions) -> SplitSources:
    """List the sources of a corpus as `split_sources` does, and divide a single document.

    If the corpus is a single document, it is divided into training and validation text: after the
    first line feed that follows the training fraction, or else before the first space.
    """
    plan = split_sources(paths, options.validation)
    if not plan.fraction or not all(source.modified for source in plan.sources):
        return plan
    with contextlib.suppress(DataError):  # raised again when the texts are read
        size, has_ended = 0, False
        for part, is_last in _read_all_parts(plan, options):
            if has_ended:
                return plan
            size, has_ended = size + len(part), is_last
        cut, start, digest = size - round(size * plan.fraction), 0, TextDigest()
        for part, _ in _read_all_parts(plan, options) if 0 < cut < size else ():
            if start + len(part) > cut:
                following = part[cut - start :][:_SEARCH_LENGTH]
                boundary = following.find("\n") + 1 or max(following.find(" "), 0)
                cut += boundary if cut + boundary < size else 0
                digest.update(part[: cut - start])
                return dataclasses.replace(plan, cut=cut, head=digest.value)
            start += len(part)
            digest.update(part)
    return plan


def _read_all_parts(plan: SplitSources, options: CorpusOptions) -> Iterator[tuple[str, bool]]:
    """Yield the documents of all sources in parts, as pairs (part, is_last).

    `is_last` is True for the last part of each document.
    """
    for source in plan.sources:
        yield from read_parts(source, options)


def _set_split(sources: Iterable[Source], split: str | None) -> tuple[Source, ...]:
    """Return copies of the sources with the given split.

    None means that the split of each document depends on the hash of its text.
    """
    return tuple(dataclasses.replace(source, split=split) for source in sources)


def hash_text(text: str) -> int:
    """Return the 64-bit hash that identifies a document and determines its split.

    Documents that differ only in line ends, in trailing spaces of lines or in their Unicode form
    (NFC, NFD) have the same hash. The function also hashes the grouping keys of labelled examples.
    """
    digest = TextDigest()
    digest.update(text)
    return digest.value


def _is_boundary(text: str, index: int) -> bool:
    """Return whether the texts before and after `index` can be Unicode-normalized separately."""
    before, after = text[index - 1], text[index]
    if before.isspace() or after.isspace():
        return before == "\n"
    # Vowels and final consonants of Hangul are combined with the letter before them.
    is_jamo = "\u1160" <= after <= "\u11ff"
    return unicodedata.category(after)[0] in "LNPS" and not is_jamo


class TextDigest:
    """Computes the hash of a text that is given in parts.

    Call `update` with each part, then read `value`.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._pending = ""
        self._pending_line_ends = ""

    def update(self, part: str) -> None:
        """Add the next part of the text to the hash."""
        text = self._pending + part
        if len(text) < _MIN_SECTION:  # most texts are hashed as a single section
            self._pending = text
            return
        # A part may end within a line end, a run of spaces or a combined character. Its end is
        # therefore hashed with the next part.
        boundary = next((i for i in range(len(text) - 1, 0, -1) if _is_boundary(text, i)), 0)
        self._pending = text[boundary:]
        self._hash_section(text[:boundary])

    def _hash_section(self, text: str) -> None:
        """Normalize a section of the text, which ends at a boundary, and add it to the hash."""
        text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
        lines = self._pending_line_ends + "\n".join(map(str.rstrip, text.split("\n")))
        visible = lines.rstrip("\n")
        self._pending_line_ends = lines[len(visible) :]
        self._hash.update(visible.encode())

    @property
    def value(self) -> int:
        """The 64-bit hash of the whole text. Do not call `update` afterwards."""
        self._hash_section(self._pending)
        return int.from_bytes(self._hash.digest(), "little")


def read_splits(
    paths: Paths, options: CorpusOptions = CorpusOptions()
) -> Iterator[tuple[str, str]]:
    """Yield the deduplicated documents of a corpus as pairs (split, text).

    The documents are those that `prepare` stores, in the same order. Exact duplicates within a
    split are skipped unless `options.keep_duplicates` is set. A training document is always skipped
    if it occurred earlier in validation.

    Duplicates are found with a set of 64-bit hashes, which needs about 80 bytes of memory per
    document. In about six billion documents, one hash collision between different texts is
    expected.
    """
    return ((split, "".join(parts)) for split, parts in _read_split_parts(paths, options))


def _read_split_parts(
    paths: Paths, options: CorpusOptions, max_bytes: int | None = None
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the deduplicated documents of a corpus as pairs (split, parts of the text).

    The caller must read all parts of a document before it requests the next document. `max_bytes`
    limits a large corpus, as in `read_training_texts`.
    """
    seen: dict[str, set[int]] = {TRAIN: set(), VALIDATION: set()}
    for split, parts, digest in _hash_texts(paths, options, max_bytes):
        repeats = digest in seen[split] and not options.keep_duplicates
        if not repeats and (split == VALIDATION or digest not in seen[VALIDATION]):
            seen[split].add(digest)
            yield split, parts


def _hash_texts(
    paths: Paths, options: CorpusOptions, max_bytes: int | None = None
) -> Iterator[tuple[str, Iterable[str], int]]:
    """Read and hash every document of a corpus. Yields tuples (split, parts, hash).

    Duplicate documents are not dropped. `max_bytes` limits a large corpus, as in
    `read_training_texts`.
    """
    plan = plan_corpus(paths, options)
    for source in select_parts(plan.sources, options, None if plan.cut else max_bytes):
        for parts, digest in _hash_documents(plan.read_parts(source, options)):
            yield plan.assign_split(source, digest), parts, digest


def _hash_documents(parts: Iterator[tuple[str, bool]]) -> Iterator[tuple[Iterable[str], int]]:
    """Group parts into documents and hash them. Yields pairs (parts of the document, hash).

    `parts` are pairs (part, is_last); `is_last` is True for the last part of each document. The
    parts of a long document are kept in a temporary file until its hash is known.
    """
    for part, is_last in parts:
        if is_last:
            yield [part], hash_text(part)
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


def hash_validation_texts(paths: Paths, options: CorpusOptions) -> set[int]:
    """Return the hashes of all validation documents of a corpus."""
    return {digest for split, _, digest in _hash_texts(paths, options) if split == VALIDATION}


def read_training_texts(
    paths: Paths, options: CorpusOptions = CorpusOptions(), *, max_bytes: int | None = None
) -> Iterator[str]:
    """Yield the training texts of a corpus, for training a tokenizer.

    A long text is yielded in several parts. If `max_bytes` is set, only random parts of a large
    corpus are read, with about as many bytes (see `sample_sources`).
    """
    for split, parts in _read_split_parts(paths, options, max_bytes):
        if split == TRAIN:
            yield from parts


def write_split_texts(
    paths: Paths, out: str | Path, options: CorpusOptions = CorpusOptions()
) -> dict[str, Path]:
    """Write the splits of a corpus to `train.txt` and `validation.txt` in the folder `out`.

    In these files, documents are separated by `options.separator`, or by blank lines if it is
    "file". With the separator "blank" or "file", blank lines within documents are removed. With the
    separator "line", line feeds within documents become spaces.

    Returns the path of each file, by the name of the split.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    names = split_sources(paths, options.validation).names
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(replace_file(folder / f"{name}.txt")) for name in names}
        for split, text in read_splits(paths, options):
            files[split].write(_append_separator(text, options.separator).encode())
    return {name: folder / f"{name}.txt" for name in names}


def _append_separator(text: str, separator: str) -> str:
    """Return a document followed by the separator.

    Line feeds within the document that would separate documents are removed or replaced with
    spaces.
    """
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    if separator == "line":
        return " ".join(lines) + "\n"
    if separator in ("blank", "file"):
        return "\n".join(lines) + "\n\n"
    return f"{text}\n{resolve_escapes(separator)}\n"
