"""Token shards: documents stored as token ids in files, which are memory-mapped for reading.

A folder contains `manifest.json`, `tokenizer.json` and numbered files for every split:
`{split}-{n:05}.bin` with token ids (uint16 if the vocabulary fits, else uint32, little-endian) and
`{split}-{n:05}.idx.npy` with the int64 document offsets [documents + 1], from 0 to the number of
tokens. A document is never split between shards. `{split}.counts.npy` (int64 [V]) contains the
number of occurrences of every token.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from trivium.data.batch import Bools, Ints
from trivium.data.sources import Source
from trivium.errors import DataError, did_you_mean, shorten
from trivium.files import (
    has_sha256,
    open_binary,
    read_json,
    reject_lfs_pointer,
    replace_folder,
    sha256,
    version_entry,
    write_json,
)
from trivium.remote import cache_path, download, is_remote, is_remote_file

FORMAT_VERSION = 4
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
TRAIN, VALIDATION = "train", "validation"
_AGAIN = "Restore it, or prepare the texts again with `trivium prepare --overwrite`."


def shard_path(folder: Path, split: str, index: int) -> Path:
    """Return the path of the token file of shard `index` of a split."""
    return folder / f"{split}-{index:05}.bin"


def index_path(folder: Path, split: str, index: int) -> Path:
    """Return the path of the file with the document offsets of shard `index` of a split."""
    return folder / f"{split}-{index:05}.idx.npy"


def counts_path(folder: Path, split: str) -> Path:
    """Return the path of the file with the token counts of a split."""
    return folder / f"{split}.counts.npy"


def has_shards(folder: str | Path) -> bool:
    """Return whether a folder, local or in object storage, contains token shards."""
    if is_remote(folder):
        return is_remote_file(f"{str(folder).rstrip('/')}/{MANIFEST}")
    return (Path(folder) / MANIFEST).is_file()


def are_shards(paths: Sequence[Any]) -> bool:
    """Return whether `paths` is a single folder of token shards rather than paths to text."""
    return len(paths) == 1 and isinstance(paths[0], str) and has_shards(paths[0])


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype of stored token ids: uint16 if all ids fit, otherwise uint32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


@dataclasses.dataclass(frozen=True, slots=True)
class ShardFile:
    """The manifest entry of a shard.

    It contains the numbers of tokens and documents, and the SHA-256 hashes of the token file and of
    the file with the document offsets.
    """

    tokens: Annotated[int, Field(ge=0)]
    documents: Annotated[int, Field(ge=0)]
    sha256: str
    index_sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class SplitInfo:
    """The manifest entry of one split.

    Args:
        documents: the number of documents.
        tokens: the number of tokens.
        text_bytes: the UTF-8 size of the documents.
        duplicates: the number of documents that were dropped as exact duplicates.
        overlap: the number of training documents that were dropped because they also occur in
            validation.
        excerpts: the beginnings of the first documents. They are stored as original text, because
            decoded tokens may lack spaces and capital letters.
        files: the manifest entries of the shards.
    """

    documents: int
    tokens: int
    text_bytes: int
    duplicates: int
    overlap: int
    excerpts: tuple[str, ...]
    files: tuple[ShardFile, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of `manifest.json`. `options` are the inputs that `prepare` recorded."""

    tokenizer_fingerprint: str
    tokenizer_sha256: str
    vocab_size: int
    dtype: str
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    options: dict[str, Any]
    splits: dict[str, SplitInfo]
    sources: tuple[Source, ...]
    format_version: int = FORMAT_VERSION

    @property
    def full_options(self) -> dict[str, Any]:
        """The options, with defaults for options that older versions did not record.

        In older shards, special-token names in the text are encoded as special tokens.
        """
        older = {
            "special_tokens": "special",
            "control_tokens": [],
            "document_tokens": [list(self.prefix_ids), list(self.suffix_ids)],
        }
        return older | self.options

    def save(self, folder: Path) -> None:
        """Write the manifest to `manifest.json` in a folder, atomically."""
        write_json(folder / MANIFEST, {**version_entry(), **dataclasses.asdict(self)})

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read and validate the `manifest.json` of a folder.

        Raises DataError if the file is missing or corrupt, or has another format version.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise DataError(
                f"{folder} is not a folder of token shards: it has no {MANIFEST}. "
                "`trivium prepare TEXTS --out FOLDER` makes one."
            )
        value = read_json(path)
        version = value.get("format_version") if isinstance(value, dict) else None
        if isinstance(version, int) and version != FORMAT_VERSION:
            raise DataError(
                f"{path} has format version {version}; this release reads {FORMAT_VERSION}. "
                "Prepare the texts again with `trivium prepare`."
            )
        try:
            manifest = TypeAdapter(cls).validate_python(value)
        except ValueError as error:
            raise DataError(f"{path} is damaged. Prepare the texts again.") from error
        ids = (*manifest.prefix_ids, *manifest.suffix_ids, *manifest.special_ids)
        if (
            not {*manifest.splits} <= {TRAIN, VALIDATION}
            or manifest.dtype != token_dtype(manifest.vocab_size).name
            or not all(0 <= token_id < manifest.vocab_size for token_id in ids)
            or any(
                (info.tokens, info.documents)
                != (sum(f.tokens for f in info.files), sum(f.documents for f in info.files))
                for info in manifest.splits.values()
            )
        ):
            raise DataError(f"{path} contradicts itself. Prepare the texts again.")
        return manifest


class ShardSplit:
    """One split of token shards, which is read as one long sequence of tokens.

    Token positions and document indices are counted from the start of the split, not of a shard.
    """

    def __init__(self, folder: Path, name: str, manifest: Manifest) -> None:
        info = manifest.splits[name]
        self.name = name
        self.num_tokens = info.tokens
        self.num_documents = info.documents
        self.prefix_ids = manifest.prefix_ids
        self.suffix_ids = manifest.suffix_ids
        self.excerpts = info.excerpts
        self.vocab_size = manifest.vocab_size
        self._folder = folder
        token, number = np.dtype(manifest.dtype).newbyteorder("<"), np.dtype(np.int64)
        self._counts = _memory_map(counts_path(folder, name), number, manifest.vocab_size)
        self._tokens, self._offsets = list[NDArray](), list[NDArray]()
        for n, file in enumerate(info.files):
            # Slices of plain arrays are cheaper than those of `np.memmap`.
            tokens = _memory_map(shard_path(folder, name, n), token, file.tokens)
            self._tokens.append(np.asarray(tokens))
            path = index_path(folder, name, n)
            offsets = np.asarray(_memory_map(path, number, file.documents + 1))
            self._offsets.append(offsets)
            ends = int(offsets[0]), int(offsets[-1])
            if ends != (0, file.tokens) or (offsets[1:] < offsets[:-1]).any():
                raise DataError(f"{path} does not rise from 0 to {file.tokens}. {_AGAIN}")
        self._token_start = np.cumsum([0, *(file.tokens for file in info.files)])
        self._document_start = np.cumsum([0, *(file.documents for file in info.files)])

    def counts(self) -> Ints:
        """Return the number of occurrences of every token in the split, int64 [V]."""
        return np.array(self._counts)

    def rows_at(self, starts: Ints, lengths: Ints, *, pad_id: int = 0) -> Ints:
        """Return B rows of consecutive tokens, int64 [B, T], padded to the longest row.

        Raises DataError if an id is not in the vocabulary; the shard is then corrupt.

        Args:
            starts: the position of the first token of each row, int64 [B].
            lengths: the number of tokens in each row, int64 [B].
            pad_id: the id of the padding token.
        """
        rows = np.full((len(starts), lengths.max(initial=0)), pad_id, dtype=np.int64)
        shards = self._token_start[1:-1].searchsorted(starts, side="right")
        local = starts - self._token_start[shards]
        for row, shard, start, length in zip(
            rows, shards.tolist(), local.tolist(), lengths.tolist(), strict=True
        ):
            part = self._tokens[shard][start : start + length]
            while len(part) < length:  # the row continues in the next shard
                shard += 1
                part = np.concatenate([part, self._tokens[shard][: length - len(part)]])
            row[:length] = part
        if rows.max(initial=0) >= self.vocab_size:
            raise DataError(
                f"{self._folder}: token {rows.max()} of {self.name} is not in the vocabulary of "
                f"{self.vocab_size}: the shards are damaged. {_AGAIN}"
            )
        return rows

    def documents_at(self, starts: Ints, length: int) -> Ints:
        """Return the document index of every token in B rows of `length` tokens, int64 [B, T].

        `starts` are the positions of the first tokens of the rows, int64 [B].
        """
        first = self._find_documents(starts)
        counts = self._find_documents(starts + length - 1) - first
        # The documents that begin inside a row have the next `counts` numbers after `first`. The
        # number of the current document increases by one at the beginning of each of them.
        rows = np.repeat(np.arange(len(starts)), counts)
        numbers = np.arange(len(rows)) + np.repeat(first + 1 + counts - np.cumsum(counts), counts)
        columns = self.document_bounds(numbers)[0] - starts[rows]
        size = len(starts) * length
        documents = np.bincount(rows * length + columns, minlength=size).reshape(-1, length)
        documents[:, 0] += first
        return documents.cumsum(axis=1, out=documents)

    def _find_documents(self, positions: Ints) -> Ints:
        """Return the index of the document at each position, in the shape of `positions`."""
        documents = np.empty(positions.shape, dtype=np.int64)
        for shard, where in _group_by_shard(self._token_start, positions):
            local = positions[where] - self._token_start[shard]
            number = self._offsets[shard].searchsorted(local, side="right") - 1
            documents[where] = number + self._document_start[shard]
        return documents

    def document_bounds(self, documents: Ints) -> tuple[Ints, Ints]:
        """Return the start and stop positions of the documents with the given indices.

        The stop position is the position after the last token. Both arrays are int64 and have the
        shape of `documents`.
        """
        starts = np.empty(documents.shape, dtype=np.int64)
        stops = np.empty(documents.shape, dtype=np.int64)
        for shard, where in _group_by_shard(self._document_start, documents):
            local = documents[where] - self._document_start[shard]
            starts[where] = self._offsets[shard][local] + self._token_start[shard]
            stops[where] = self._offsets[shard][local + 1] + self._token_start[shard]
        return starts, stops

    def document(self, index: int) -> Ints:
        """Return the token ids of one document, int64, including its prefix and suffix ids."""
        starts, stops = self.document_bounds(np.array([index]))
        return self.rows_at(starts, stops - starts)[0]


def _group_by_shard(starts: Ints, positions: Ints) -> Iterator[tuple[int, Bools | EllipsisType]]:
    """Group positions (or document indices) by the shard that contains them.

    `starts` contains the first position of every shard, and the total length. Yields pairs (shard
    index, mask of the positions in this shard). If there is only one shard, the mask is `...`.
    """
    if len(starts) == 2:
        yield 0, ...
        return
    shards = np.searchsorted(starts, positions, side="right") - 1
    for shard in np.unique(shards):
        yield int(shard), shards == shard


class Shards:
    """A folder of token shards. `Shards.open` validates the folder, and memory-maps its files."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._splits = {name: ShardSplit(folder, name, manifest) for name in manifest.splits}

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Open a folder of token shards. A folder in object storage is first copied to the cache.

        Raises DataError if the folder is missing or has another format version, if a file is
        missing or has the wrong size, or if the tokenizer is not the one in the manifest.
        """
        folder = _download_shards(str(folder)) if is_remote(folder) else Path(folder)
        manifest, tokenizer = Manifest.load(folder), folder / TOKENIZER
        if not tokenizer.is_file() or sha256(tokenizer) != manifest.tokenizer_sha256:
            raise DataError(f"{tokenizer} is missing, or not that of these shards. {_AGAIN}")
        return cls(folder, manifest)

    def verify(self, part: int = 0, num_parts: int = 1) -> None:
        """Verify the SHA-256 checksums of the files.

        Only every `num_parts`-th file is verified, starting with file `part`. By default, all files
        are verified.

        Raises DataError if a file has changed.
        """
        files: list[tuple[Path, str]] = []
        for split, info in self.manifest.splits.items():
            for number, file in enumerate(info.files):
                files.append((shard_path(self.folder, split, number), file.sha256))
                files.append((index_path(self.folder, split, number), file.index_sha256))
        for path, digest in files[part::num_parts]:
            if not has_sha256(path, digest):
                raise DataError(f"{path} has changed since it was prepared. {_AGAIN}")

    @property
    def tokenizer_path(self) -> Path:
        """The path of the tokenizer that encoded the documents."""
        return self.folder / TOKENIZER

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self._splits)

    def split(self, name: str) -> ShardSplit:
        """Return the split "train" or "validation". Raises DataError if it does not exist."""
        if name not in self._splits:
            raise DataError(
                f'{self.folder} has no split "{name}"; it has {", ".join(self._splits)}.'
                + did_you_mean(name, self._splits)
            )
        return self._splits[name]


def _download_shards(url: str) -> Path:
    """Copy token shards from object storage to the cache. Returns the local folder.

    If the cache already has shards with the same URL and manifest, nothing is copied.
    """
    with open_binary(f"{url.rstrip('/')}/{MANIFEST}") as file:
        folder = cache_path(url, file.read().decode())
    if not folder.is_dir():
        with replace_folder(folder) as temporary:
            download(url, temporary)
    return folder


def unigram_loss(sources: Sequence[Shards], weights: Sequence[float] = (1.0,)) -> float:
    """Return the validation loss of a unigram model in nats per token, a baseline for training.

    Args:
        sources: the token shards of the sources in a mixture.
        weights: the mixture weights of the sources.

    The loss is the mean of -log p(token) over the validation tokens, where p(token) = (train count
    + 1) / (train tokens + V). If a source has no validation split, its training tokens are used.
    Special tokens are left out. A model that has learned more than token frequencies has a lower
    loss. Returns NaN if there are no tokens.
    """
    manifest = sources[0].manifest
    regular = np.ones(manifest.vocab_size, dtype=bool)
    regular[list(manifest.special_ids)] = False
    train, valid = np.zeros(regular.sum()), np.zeros(regular.sum())
    total = 0.0
    for shards, weight in zip(sources, np.divide(weights, sum(weights)), strict=True):
        counts = shards.split(TRAIN).counts()[regular]
        validation = (
            shards.split(VALIDATION).counts()[regular] if VALIDATION in shards.names else counts
        )
        train += weight * counts / max(1, counts.sum())
        valid += weight * validation / max(1, validation.sum())
        total += counts.sum()
    if not valid.sum():
        return math.nan
    log_probability = np.log(total * train + 1.0) - np.log(total + len(train))
    return float(-(valid * log_probability).sum() / valid.sum())


def _memory_map(path: Path, dtype: np.dtype, length: int) -> NDArray:
    """Return the array in a file, memory-mapped.

    Raises DataError if the file cannot be read, or if it does not contain `length` numbers of type
    `dtype`.
    """
    try:
        reject_lfs_pointer(path)
        is_array = path.suffix == ".npy"
        array = np.load(path, mmap_mode="r") if is_array else np.memmap(path, dtype, mode="r")
    except Exception as error:  # numpy's parser raises many kinds
        raise DataError(f"{path} cannot be read: {shorten(str(error), 200)}. {_AGAIN}") from error
    if array.shape != (length,) or array.dtype != dtype:
        raise DataError(f"{path} has {array.shape} entries; the manifest says {length}. {_AGAIN}")
    return array
