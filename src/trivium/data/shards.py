"""Token shards on disk: the format, and reading it back as memory maps.

A folder holds `manifest.json`, `tokenizer.json` and for every split numbered files:
`{split}-{n:05}.bin` with token ids (uint16 where the vocabulary fits, else uint32, little-endian)
and `{split}-{n:05}.idx.npy` with the int64 document offsets [documents + 1], from 0 to the number
of tokens. A document never crosses shards. `{split}.counts.npy` (int64 [V]) counts every token.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError, did_you_mean

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
TRAIN, VALIDATION = "train", "validation"


def shard_path(folder: Path, split: str, number: int) -> Path:
    """Where the tokens of shard `number` of a split stand."""
    return folder / f"{split}-{number:05}.bin"


def index_path(folder: Path, split: str, number: int) -> Path:
    """Where the document offsets of shard `number` of a split stand."""
    return folder / f"{split}-{number:05}.idx.npy"


def counts_path(folder: Path, split: str) -> Path:
    """Where the token counts of a split stand."""
    return folder / f"{split}.counts.npy"


def file_sha256(path: Path) -> str:
    """The sha256 of a file, read as a stream."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class ShardFile:
    """One numbered shard of a split: its file name, tokens and documents."""

    name: str
    tokens: int
    documents: int


@dataclasses.dataclass(frozen=True, slots=True)
class SplitInfo:
    """What the manifest says of one split.

    `text_bytes` is the UTF-8 size of the documents kept; `duplicates` counts documents dropped
    because their text had been seen, `leaks` those dropped because it stands in validation.
    """

    documents: int
    tokens: int
    text_bytes: int
    duplicates: int
    leaks: int
    files: tuple[ShardFile, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SourceInfo:
    """What the manifest says of one source: its name, split, size in bytes and sha256.

    `split` is None where the documents are divided by their hash. `modified` is the modification
    time in nanoseconds, 0 where there is none.
    """

    name: str
    split: str | None
    size: int
    modified: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of `manifest.json`."""

    tokenizer_fingerprint: str
    tokenizer_sha256: str
    vocab_size: int
    dtype: str
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    options: dict[str, Any]
    splits: dict[str, SplitInfo]
    sources: tuple[SourceInfo, ...]
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The manifest as indented JSON with the keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError on anything else."""
        raw = json.loads(text)
        splits = {
            name: SplitInfo(**{**info, "files": tuple(ShardFile(**f) for f in info["files"])})
            for name, info in raw["splits"].items()
        }
        ids = {key: tuple(raw[key]) for key in ("prefix_ids", "suffix_ids", "special_ids")}
        sources = tuple(SourceInfo(**source) for source in raw["sources"])
        return cls(**{**raw, **ids, "splits": splits, "sources": sources})


class ShardSplit:
    """One split as one long run of tokens, read through memory maps.

    Shards are crossed transparently: token positions and document numbers count from the start of
    the split.
    """

    def __init__(self, folder: Path, name: str, manifest: Manifest) -> None:
        info = manifest.splits[name]
        self.name = name
        self.num_tokens = info.tokens
        self.num_documents = info.documents
        self.prefix_ids = manifest.prefix_ids
        self.suffix_ids = manifest.suffix_ids
        self._folder = folder
        dtype = np.dtype(manifest.dtype).newbyteorder("<")
        shards = range(len(info.files))
        self._tokens = [np.memmap(shard_path(folder, name, n), dtype, mode="r") for n in shards]
        self._offsets = [np.load(index_path(folder, name, n), mmap_mode="r") for n in shards]
        self._token_start = np.cumsum([0, *(file.tokens for file in info.files)])
        self._document_start = np.cumsum([0, *(file.documents for file in info.files)])

    def counts(self) -> NDArray[np.int64]:
        """How often every token of the vocabulary occurs, int64 [V]."""
        return np.load(counts_path(self._folder, self.name))

    def tokens_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The token ids at the given positions (any shape, each in 0..num_tokens-1), as int64."""
        ids = np.empty(positions.shape, dtype=np.int64)
        for shard, here in _by_shard(self._token_start, positions):
            ids[here] = self._tokens[shard][positions[here] - self._token_start[shard]]
        return ids

    def documents_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the document that each position belongs to, counted from 0, int64."""
        documents = np.empty(positions.shape, dtype=np.int64)
        for shard, here in _by_shard(self._token_start, positions):
            local = positions[here] - self._token_start[shard]
            found = np.searchsorted(self._offsets[shard], local, side="right") - 1
            documents[here] = found + self._document_start[shard]
        return documents

    def document_bounds(
        self, documents: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First position of each document and the position after its last, both int64."""
        starts = np.empty(documents.shape, dtype=np.int64)
        stops = np.empty(documents.shape, dtype=np.int64)
        for shard, here in _by_shard(self._document_start, documents):
            local = documents[here] - self._document_start[shard]
            starts[here] = self._offsets[shard][local] + self._token_start[shard]
            stops[here] = self._offsets[shard][local + 1] + self._token_start[shard]
        return starts, stops

    def document(self, number: int) -> NDArray[np.int64]:
        """The token ids of one document, with its prefix and suffix."""
        starts, stops = self.document_bounds(np.array([number]))
        return self.tokens_at(np.arange(starts[0], stops[0]))


def _by_shard(starts: NDArray[np.int64], numbers: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
    """Pairs (shard, where): which of `numbers` lie in which shard; `where` indexes `numbers`."""
    if len(starts) == 2:
        yield 0, ...
        return
    shards = np.searchsorted(starts, numbers, side="right") - 1
    for shard in np.unique(shards):
        yield int(shard), shards == shard


class Shards:
    """A folder of token shards. `Shards.open` checks it and maps it into memory."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._splits = {name: ShardSplit(folder, name, manifest) for name in manifest.splits}

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Open a prepared folder.

        Raises DataError where it is missing, of another format version, or does not hold what its
        manifest says: files missing or of another size, another tokenizer.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        _check_files(folder, manifest)
        return cls(folder, manifest)

    @property
    def tokenizer_path(self) -> Path:
        """Where the tokenizer of these shards stands."""
        return self.folder / TOKENIZER

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self._splits)

    def split(self, name: str) -> ShardSplit:
        """One split by name ("train", "validation"). Raises DataError where there is none."""
        if name not in self._splits:
            raise DataError(
                f'{self.folder} has no split "{name}"; it has {", ".join(self._splits)}.'
                + did_you_mean(name, self._splits)
            )
        return self._splits[name]

    def unigram_loss(self) -> float:
        """The loss of guessing by word frequency, nats a token.

        Mean of -log p(token) over the validation tokens (the training tokens where there is no
        validation), p(token) = (train count + 1) / (train tokens + V), special tokens left out
        throughout. A model that has learned anything but frequencies is below it.
        """
        ordinary = np.ones(self.manifest.vocab_size, dtype=bool)
        ordinary[list(self.manifest.special_ids)] = False
        train = self.split(TRAIN).counts()[ordinary]
        judged = train
        if VALIDATION in self._splits:
            judged = self.split(VALIDATION).counts()[ordinary]
        if not judged.sum():
            return math.nan
        log_probability = np.log(train + 1.0) - np.log(train.sum() + float(len(train)))
        return float(-(judged * log_probability).sum() / judged.sum())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder. Raises DataError where it is missing or cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder} is not a folder of token shards: it has no {MANIFEST}. "
            "`trivium prepare TEXTS --out FOLDER` makes one."
        )
    try:
        text = path.read_text(encoding="utf-8")
        version = json.loads(text)["format_version"]
        if version != FORMAT_VERSION:
            raise DataError(
                f"{path} has format version {version}; this release reads {FORMAT_VERSION}. "
                "Prepare the texts again with `trivium prepare`."
            )
        return Manifest.from_json(text)
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}). Prepare the texts again.") from error


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Compare the files with the manifest. Raises DataError at the first that differs."""
    again = "Prepare the texts again with `trivium prepare --overwrite`."
    item = np.dtype(manifest.dtype).itemsize
    for split, info in manifest.splits.items():
        _check_npy(counts_path(folder, split), manifest.vocab_size, again)
        for number, file in enumerate(info.files):
            path = shard_path(folder, split, number)
            size = path.stat().st_size if path.is_file() else None
            if size != file.tokens * item:
                what = "is missing" if size is None else f"has {size} bytes"
                raise DataError(
                    f"{path} {what}; the manifest says {file.tokens * item} bytes. {again}"
                )
            _check_npy(index_path(folder, split, number), file.documents + 1, again)
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file():
        raise DataError(f"{tokenizer} is missing. {again}")
    if file_sha256(tokenizer) != manifest.tokenizer_sha256:
        raise DataError(f"{tokenizer} is not the tokenizer these shards were made with. {again}")


def _check_npy(path: Path, length: int, again: str) -> None:
    """Check that an int64 `.npy` file is there, whole, and has `length` entries."""
    if not path.is_file():
        raise DataError(f"{path} is missing. {again}")
    try:
        array = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is damaged ({error}). {again}") from error
    if array.shape != (length,) or array.dtype != np.int64:
        raise DataError(f"{path} has {array.shape} entries; the manifest says {length}. {again}")
