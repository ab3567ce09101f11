"""Writes, loads and merges the shards that encoding tasks produce while data is prepared.

A task (`encode_tasks.Task`) writes a shard for about every 64 MB of text. A finished shard is a
folder with the token and offset files of every split, a table of its documents and a completion
marker. Tasks do not depend on each other, so that processes and machines can run tasks in any
order. Duplicate documents are dropped when the shards are merged. Only shards that contain
duplicates are then rewritten.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from trivium.data.batch import Bools, Ints
from trivium.data.encode_tasks import NUM_EXCERPTS, EncodedBatch, Task, TaskReader
from trivium.data.shards import (
    TRAIN,
    VALIDATION,
    ShardFile,
    SplitInfo,
    counts_path,
    index_path,
    shard_path,
    token_dtype,
)
from trivium.data.sources import Source
from trivium.data.splitting import CorpusOptions
from trivium.errors import DataError, shorten
from trivium.files import has_sha256, replace_folder, sha256, write_json

MARKER = "shard.json"
_DOCUMENTS = "documents.npy"
_DOCUMENT = [("digest", "<u8"), ("text_bytes", "<i8"), ("tokens", "<i8"), ("in_validation", "?")]
_BLOCK_TOKENS = 1 << 20

Report = Callable[[int, int], None]
"""A progress callback. Its arguments are the numbers of documents and tokens so far."""


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedShard:
    """The completion marker of a shard. It contains metadata, and is written after all other files.

    Args:
        sources: all sources of the encoding task that wrote the shard.
        is_last: whether the shard is the last shard of its task.
        documents: the number of documents in the shard.
        tokens: the number of tokens in the shard.
        excerpts: for each split, the beginnings of the first documents.
        sha256: the SHA-256 hash of every other file in the folder, by file name.
    """

    sources: tuple[Source, ...]
    is_last: bool
    documents: int
    tokens: int
    excerpts: dict[str, tuple[str, ...]]
    sha256: dict[str, str]


class TaskShards:
    """Loads, writes and merges the finished shards in a work folder.

    Args:
        folder: the work folder.
        vocab_size: the size of the vocabulary.

    Attributes:
        finished: the completion marker of each finished shard, by shard folder.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder, self.vocab_size = folder, vocab_size
        self.dtype = token_dtype(vocab_size)
        self.finished: dict[Path, FinishedShard] = {}

    @property
    def num_tokens(self) -> int:
        """The total number of tokens in all finished shards."""
        return sum(shard.tokens for shard in self.finished.values())

    def shard_folder(self, task: Task, index: int) -> Path:
        """Return the folder for shard `index` of an encoding task."""
        return self.folder / f"shard-{task.index:05}-{index:04}"

    def load(self, tasks: Iterable[Task]) -> None:
        """Add the finished shards of encoding tasks to `finished`.

        Shards whose sources have changed are ignored.

        Raises DataError if a shard is corrupt.
        """
        for task in tasks:
            for index in itertools.count():
                path = self.shard_folder(task, index)
                try:
                    shard = _load_finished_shard(path, task.sources)
                except (OSError, ValueError) as error:
                    raise DataError(
                        f"{path}: this finished shard is damaged ({shorten(str(error), 200)}). "
                        f"Remove {self.folder} to prepare the texts again."
                    ) from error
                if shard is None:
                    break
                self.finished[path] = shard

    def write(
        self, path: Path, reader: TaskReader, batches: Iterable[EncodedBatch], report: Report
    ) -> None:
        """Write a shard to the folder `path`, with its document table and completion marker.

        Args:
            path: the folder of the shard.
            reader: the reader of the encoding task. It is a few batches ahead of `batches`.
            batches: the encoded documents.
            report: a function that is called after every batch with the numbers of documents and
                tokens so far.
        """
        with replace_folder(path) as folder:
            num_tokens = _write_tokens(folder, reader, batches, report)
            table = [reader.digests, reader.sizes, num_tokens, reader.in_validation]
            np.save(folder / _DOCUMENTS, np.rec.fromarrays(table, dtype=_DOCUMENT))
            for split in (TRAIN, VALIDATION):
                lengths = _load_document_table(folder, split)["tokens"]
                counts = self._write_offsets(*_shard_file_paths(folder, split), lengths)
                np.save(counts_path(folder, split), counts)
            shard = FinishedShard(
                reader.task.sources,
                reader.is_finished,
                len(num_tokens),
                sum(num_tokens),
                {split: tuple(texts) for split, texts in reader.excerpts.items()},
                {file.name: sha256(file) for file in sorted(folder.iterdir())},
            )
            write_json(folder / MARKER, dataclasses.asdict(shard))
        self.finished[path] = shard

    def merge(
        self, out: Path, splits: Sequence[str], options: CorpusOptions, excluded: Collection[int]
    ) -> dict[str, SplitInfo]:
        """Merge the finished shards into the folder `out`, without duplicate documents.

        Duplicates of earlier documents are dropped, unless `options.keep_duplicates` is set.
        Training documents are dropped if they also occur in validation, or if their hash is in
        `excluded`. If no document of a shard is dropped, its files are hard-linked, not rewritten.

        Returns the manifest entry of each split, by the name of the split.
        """
        self.finished = dict(sorted(self.finished.items()))
        digests = {
            split: np.concatenate([_load_document_table(p, split)["digest"] for p in self.finished])
            for split in (TRAIN, VALIDATION)
        }
        others = np.fromiter(excluded, np.uint64, len(excluded))
        held_out = np.concatenate((digests[VALIDATION], others))
        merged: dict[str, SplitInfo] = {}
        for split in splits:
            overlap = np.isin(digests[split], held_out if split == TRAIN else ())
            repeats = ~overlap & (not options.keep_duplicates)
            repeats[np.unique(digests[split], return_index=True)[1]] = False
            merged[split] = self._merge_split(out, split, repeats, overlap)
        return merged

    def _merge_split(self, out: Path, split: str, repeats: Bools, overlap: Bools) -> SplitInfo:
        """Write the shards and token counts of one split to `out`. Returns its manifest entry.

        `repeats` and `overlap` are masks of the documents to drop: duplicates, and training
        documents that also occur in validation.
        """
        files: list[ShardFile] = []
        excerpts: list[str] = []
        text_bytes, start = 0, 0
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for folder, shard in self.finished.items():
            documents = _load_document_table(folder, split)
            some = slice(start, start := start + len(documents))
            keep = ~(repeats[some] | overlap[some])
            excerpts += itertools.compress(shard.excerpts.get(split, ()), keep)
            text_bytes += int(documents["text_bytes"][keep].sum())
            if documents["tokens"][keep].any():
                paths = _shard_file_paths(out, split, len(files))
                file, counts_of_file = self._merge_file(folder, split, documents, keep, paths)
                files.append(file)
                counts += counts_of_file
        np.save(counts_path(out, split), counts)
        return SplitInfo(
            documents=sum(file.documents for file in files),
            tokens=sum(file.tokens for file in files),
            text_bytes=text_bytes,
            duplicates=int(repeats.sum()),
            overlap=int(overlap.sum()),
            excerpts=tuple(excerpts[:NUM_EXCERPTS]),
            files=tuple(files),
        )

    def _merge_file(
        self, folder: Path, split: str, documents: NDArray, mask: Bools, paths: tuple[Path, Path]
    ) -> tuple[ShardFile, Ints]:
        """Write a shard of a split to the final folder. Returns (manifest entry, token counts).

        If no document is dropped, the files of the finished shard are hard-linked. The token counts
        are the number of occurrences of every token in the shard, int64 [V].

        Args:
            folder: the folder of the finished shard.
            split: the name of the split.
            documents: the document table of the shard.
            mask: for each document, whether to keep it.
            paths: the final paths of the token file and the offset file.
        """
        finished, lengths = _shard_file_paths(folder, split), documents["tokens"][mask]
        if lengths.sum() == documents["tokens"].sum():
            for source, target in zip(finished, paths):
                _link_or_copy(source, target)
            digests = [self.finished[folder].sha256[path.name] for path in finished]
            counts = np.load(counts_path(folder, split))
        else:
            self._copy_tokens(finished[0], paths[0], documents["tokens"], mask)
            counts = self._write_offsets(*paths, lengths)
            digests = [sha256(path) for path in paths]
        return ShardFile(int(lengths.sum()), int((lengths > 0).sum()), *digests), counts

    def _copy_tokens(self, source: Path, target: Path, lengths: Ints, mask: Bools) -> None:
        """Copy the tokens of the documents selected by `mask` to another token file.

        `lengths` are the token counts of all documents in `source`.
        """
        offsets, start = np.concatenate(([0], np.cumsum(lengths))), 0
        with target.open("wb") as file:
            for block in self._read_token_blocks(source):
                bounds = np.clip(offsets, start, start + len(block))
                start += len(block)
                file.write(block[np.repeat(mask, np.diff(bounds))].tobytes())

    def _write_offsets(self, token_path: Path, offset_path: Path, lengths: Ints) -> Ints:
        """Write the document offsets of a token file. Documents without tokens are left out.

        Returns the number of occurrences of every token in the file, int64 [V].
        """
        np.save(offset_path, np.concatenate(([0], np.cumsum(lengths[lengths > 0]))))
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for block in self._read_token_blocks(token_path):
            counts += np.bincount(block, minlength=self.vocab_size)
        return counts

    def _read_token_blocks(self, path: Path) -> Iterator[NDArray]:
        """Yield the token ids in a file in blocks.

        The file is not memory-mapped, since mapped pages would count as memory of the process.
        """
        with path.open("rb") as file:
            while len(block := np.fromfile(file, self.dtype, _BLOCK_TOKENS)):
                yield block


def _load_finished_shard(folder: Path, sources: tuple[Source, ...]) -> FinishedShard | None:
    """Read and verify the finished shard in `folder`. Returns its completion marker.

    Returns None if there is no finished shard, or if it was made from other sources.

    Raises ValueError if the files of the shard do not match the marker.
    """
    if not (folder / MARKER).is_file():
        return None
    shard = TypeAdapter(FinishedShard).validate_json((folder / MARKER).read_bytes())
    if shard.sources != sources:
        return None
    if {file.name for file in folder.iterdir()} != {MARKER, *shard.sha256}:
        raise ValueError("it has other files")
    for name, digest in shard.sha256.items():
        if not has_sha256(folder / name, digest):
            raise ValueError(f"{name} has changed")
    if len(np.load(folder / _DOCUMENTS, mmap_mode="r")) != shard.documents:
        raise ValueError("it has other documents")
    return shard


def _write_tokens(
    folder: Path, reader: TaskReader, batches: Iterable[EncodedBatch], report: Report
) -> array[int]:
    """Write the tokens of documents to one file per split.

    The split of a document is known only when all of it has been read. Until then, its tokens are
    in the training file.

    Returns the number of tokens of each document.
    """
    lengths = array("q")
    num_tokens = length = 0
    paths = [shard_path(folder, split, 0) for split in (TRAIN, VALIDATION)]
    with paths[0].open("w+b") as train, paths[1].open("wb") as validation:
        for batch in batches:
            for ids, is_last in batch:
                in_validation = is_last and reader.in_validation[len(lengths)]
                if in_validation and length:
                    _move_last_bytes(train, validation, length * ids.itemsize)
                (validation if in_validation else train).write(ids.tobytes())
                num_tokens, length = num_tokens + len(ids), length + len(ids)
                if is_last:
                    lengths.append(length)
                    length = 0
            report(len(lengths), num_tokens)
    return lengths


def _move_last_bytes(source: BinaryIO, target: BinaryIO, num_bytes: int) -> None:
    """Move the last `num_bytes` bytes of a file to the end of another file."""
    start = source.seek(-num_bytes, os.SEEK_END)
    shutil.copyfileobj(source, target)
    source.truncate(source.seek(start))


def _shard_file_paths(folder: Path, split: str, index: int = 0) -> tuple[Path, Path]:
    """Return the paths of the token file and the offset file of a shard."""
    return shard_path(folder, split, index), index_path(folder, split, index)


def _load_document_table(folder: Path, split: str) -> NDArray:
    """Return the rows of a finished shard's document table that belong to one split."""
    documents = np.load(folder / _DOCUMENTS)
    return documents[documents["in_validation"] == (split == VALIDATION)]


def _link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file to a new path, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
