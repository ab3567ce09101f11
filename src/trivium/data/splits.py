"""Which split a document belongs to, and whether it has been seen before.

Both follow from a hash of its text alone, so that adding or reordering data moves nothing between
training and validation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trivium.data.formats import ReadOptions, unescaped
from trivium.data.shards import TRAIN, VALIDATION
from trivium.data.sources import Document, Listing, Source, list_sources, read_source
from trivium.errors import DataError

_SLICE = 1 << 20

Paths = Sequence[str | Path] | str | Path


def text_digest(text: str) -> tuple[int, int]:
    """The 64-bit blake2b hash of a document's UTF-8 bytes, and how many bytes they are.

    The hash is part of the shard format: it decides the split.
    """
    hashed = hashlib.blake2b(digest_size=8)
    size = 0
    # In slices, because encoding takes up to four bytes a character for a while.
    for start in range(0, len(text), _SLICE):
        data = text[start : start + _SLICE].encode()
        hashed.update(data)
        size += len(data)
    return int.from_bytes(hashed.digest(), "little"), size


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The sources to read, in order, each with its split; None where the hash decides.

    `fraction` is the share of documents that the hash gives to validation, 0 where validation has
    paths of its own or is not wanted.
    """

    sources: tuple[tuple[Source, str | None], ...]
    skipped: tuple[str, ...]
    fraction: float

    @property
    def wants_validation(self) -> bool:
        """Whether there is to be a validation split."""
        return self.fraction > 0 or any(split == VALIDATION for _, split in self.sources)


def plan_sources(paths: Paths, validation: float | Paths = 0.1) -> Plan:
    """List the sources of training and validation; validation comes first where it has paths.

    `validation` is a fraction of the documents in [0, 1), or one or more paths.
    Raises DataError where the fraction is out of range or a path cannot be read.
    """
    train = list_sources(paths)
    if isinstance(validation, int | float):
        if not 0 <= validation < 1:
            raise DataError(
                f"validation is a fraction of the documents from 0 up to (not with) 1, or a path; "
                f"not {validation}."
            )
        split = None if validation else TRAIN
        return Plan(_with_split(train, split), train.skipped, float(validation))
    held = list_sources(validation)
    places = {os.path.realpath(source.name) for source in held.sources if source.kind == "file"}
    rest = tuple(s for s in train.sources if os.path.realpath(s.name) not in places)
    if not rest:
        raise DataError("Every training file is a validation file too; nothing is left to train on")
    train = Listing(rest, train.skipped)
    sources = _with_split(held, VALIDATION) + _with_split(train, TRAIN)
    return Plan(sources, train.skipped + held.skipped, 0.0)


def _with_split(listing: Listing, split: str | None) -> tuple[tuple[Source, str | None], ...]:
    return tuple((source, split) for source in listing.sources)


class Divider:
    """Gives every document its split, or None where it is dropped as a repeat.

    Dropped are documents that the same split has seen (unless `keep_duplicates`; counted in
    `duplicates`) and training documents that stand in a validation of its own (always; counted in
    `leaks`). Memory is one 64-bit digest for each document kept, about 80 bytes in a set of
    Python integers: 1 GB for some 12 million documents. Two texts sharing a digest, by which one
    would be dropped wrongly, is expected once in about six billion documents.
    """

    def __init__(self, fraction: float, *, keep_duplicates: bool = False) -> None:
        self.keep_duplicates = keep_duplicates
        self.duplicates = {TRAIN: 0, VALIDATION: 0}
        self.leaks = 0
        self.seen: dict[str, set[int]] = {TRAIN: set(), VALIDATION: set()}
        self._threshold = round(fraction * 2**64)

    def place(self, digest: int, split: str | None) -> str | None:
        """The split of a document, given what its source says; None drops it."""
        if split is None:
            split = VALIDATION if digest < self._threshold else TRAIN
        if split == TRAIN and digest in self.seen[VALIDATION]:
            self.leaks += 1
            return None
        seen = self.seen[split]
        if digest in seen and not self.keep_duplicates:
            self.duplicates[split] += 1
            return None
        if not self.keep_duplicates or split == VALIDATION:
            seen.add(digest)
        return split


def read_splits(
    paths: Paths,
    *,
    validation: float | Paths = 0.1,
    separator: str = "blank",
    text_field: str = "text",
    errors: str = "strict",
    keep_duplicates: bool = False,
) -> Iterator[tuple[str, Document]]:
    """The documents that `prepare` keeps, as pairs (split, document), in its order."""
    plan = plan_sources(paths, validation)
    options = ReadOptions(separator, text_field, errors)
    divider = Divider(plan.fraction, keep_duplicates=keep_duplicates)
    for source, given in plan.sources:
        for text in read_source(source, options):
            split = divider.place(text_digest(text)[0], given)
            if split is not None:
                yield split, Document(text, source.name)


def write_split_texts(
    paths: Paths,
    out: str | Path,
    *,
    validation: float | Paths = 0.1,
    separator: str = "blank",
    text_field: str = "text",
    errors: str = "strict",
    keep_duplicates: bool = False,
) -> dict[str, Path]:
    """Write the splits as `train.txt` and `validation.txt` in the folder `out`.

    The files read back with the same separator ("file" becomes "blank"). Where a document holds
    the separator itself, its blank lines (or, for "line", its line feeds) are closed up.
    Returns the file of each split.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files = {split: folder / f"{split}.txt" for split in (TRAIN, VALIDATION)}
    if not plan_sources(paths, validation).wants_validation:
        del files[VALIDATION]
    aside = {split: path.with_name(f".{path.name}.partial") for split, path in files.items()}
    opened = {s: path.open("w", encoding="utf-8", newline="\n") for s, path in aside.items()}
    try:
        for split, document in read_splits(
            paths,
            validation=validation,
            separator=separator,
            text_field=text_field,
            errors=errors,
            keep_duplicates=keep_duplicates,
        ):
            opened[split].write(_written(document.text, separator))
        for split, file in opened.items():
            file.close()
            os.replace(aside[split], files[split])
    finally:
        for split, file in opened.items():
            file.close()
            aside[split].unlink(missing_ok=True)
    return files


def _written(text: str, separator: str) -> str:
    """A document with what parts it from the next."""
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    if separator == "line":
        return " ".join(lines) + "\n"
    if separator in ("blank", "file"):
        return "\n".join(lines) + "\n\n"
    return f"{text}\n{unescaped(separator)}\n"
