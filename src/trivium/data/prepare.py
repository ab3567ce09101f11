"""Text to token shards: read once, encoded in parallel, resumable, the same bytes every time.

The work is done in `OUT.partial`, which is renamed to `OUT` when all of it is complete. It is cut
into pieces of some 64 MB of consecutive text. A finished piece is one shard per split and a marker;
the same call after a crash, or after a bad file was corrected, resumes behind the last marker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trivium.data.documents import no_text
from trivium.data.pieces import SPLITS, Pieces, ShardWriter
from trivium.data.shards import (
    FORMAT_VERSION,
    MANIFEST,
    TOKENIZER,
    TRAIN,
    Manifest,
    Shards,
    SourceInfo,
    SplitInfo,
    counts_path,
    shard_path,
    token_dtype,
)
from trivium.data.sources import Paths
from trivium.data.splitting import (
    CorpusOptions,
    Deduplicator,
    SplitSources,
    split_sources,
)
from trivium.data.text_batches import encode_batches, read_batches
from trivium.errors import DataError, TriviumError
from trivium.files import move_folder, read_json, replace_file, sha256, write_json
from trivium.text import Tokenizer

if sys.platform != "win32":
    import fcntl

_TOKENS_AT_ONCE = 1 << 20
_INPUTS, _LOCK = "inputs.json", "lock"
_TEMPORARY = (_INPUTS, _LOCK, "piece-*")


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareProgress:
    """How far a preparation is.

    Documents and tokens kept so far; `read_bytes` of `total_bytes` of the sources as stored (0
    where the total is not known); UTF-8 bytes of text per second of this call. A `note` is a
    message to show.
    """

    documents: int = 0
    tokens: int = 0
    read_bytes: int = 0
    total_bytes: int = 0
    bytes_per_second: float = 0.0
    note: str = ""


ProgressCallback = Callable[[PrepareProgress], None]


def prepare(
    paths: Paths,
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    options: CorpusOptions | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> Shards:
    """Read texts, split, deduplicate and encode them, and write token shards to `out`.

    Every document is stored as the tokenizer's prefix ids, its own ids and the suffix ids. A folder
    made from the same inputs is opened as it is, even when the texts themselves are gone; an
    interrupted call is resumed.

    Args:
        paths: Sources as `trivium.data.documents.list_texts` takes them.
        tokenizer: Turns texts into ids.
        out: The folder to make.
        options: How the texts are read and split.
        overwrite: Replace shards that `out` already holds.
        progress: Called with a `PrepareProgress` about once a megabyte.

    Raises:
        DataError: Bad sources, an empty split, or an `out` that holds something else. Finished
            pieces stay in `OUT.partial` for the next call.
    """
    out = Path(out).absolute()
    options = options or CorpusOptions()
    inputs = _describe(paths, options, tokenizer.fingerprint)
    finished = None if _is_free(out) or overwrite else Manifest.load(out)
    try:
        plan = split_sources(paths, options.validation)
    except DataError:
        if finished is not None and finished.options == inputs:
            return Shards.open(out)
        raise
    if finished is not None:
        _check_same(out, finished, inputs, plan)
        _remove_temporary(out)
        return Shards.open(out)
    work = partial_folder(out)
    with _locked(work):
        preparation = _Preparation(
            work, plan, options, inputs, tokenizer, progress or (lambda _: None)
        )
        try:
            preparation.encode()
        except TriviumError:
            preparation.report_kept()
            raise
        preparation.finish()
        move_folder(work, out)
    _remove_temporary(out)
    return Shards.open(out)


def texts_changed(shards: Shards, paths: Paths, options: CorpusOptions) -> bool:
    """Whether finished shards were made of other contents; False where the texts are gone."""
    try:
        plan = split_sources(paths, options.validation)
    except DataError:
        return False
    return [_contents(source) for source in shards.manifest.sources] != list(
        map(_contents, plan.infos)
    )


def partial_folder(out: str | Path) -> Path:
    """The folder of unfinished work on `out`."""
    out = Path(out).absolute()
    return out.with_name(out.name + ".partial")


def unfinished_tokenizer(paths: Paths, out: str | Path, options: CorpusOptions) -> Path | None:
    """The tokenizer of an interrupted preparation of the same texts; None where there is none."""
    folder = partial_folder(out)
    if not ((folder / _INPUTS).is_file() and (folder / TOKENIZER).is_file()):
        return None
    inputs = read_json(folder / _INPUTS)
    same = inputs == _describe(paths, options, inputs.get("tokenizer"))
    return folder / TOKENIZER if same else None


def _describe(paths: Paths, options: CorpusOptions, fingerprint: str) -> dict[str, Any]:
    """All that decides the contents of shards except the sources' contents, as JSON values."""
    validation = options.validation
    if not isinstance(validation, int | float):
        validation = _strings(validation)
    return {
        "format_version": FORMAT_VERSION,
        "tokenizer": fingerprint,
        "paths": _strings(paths),
        **dataclasses.asdict(options),
        "validation": validation,
    }


def _strings(paths: Paths) -> list[str]:
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]


def _is_free(out: Path) -> bool:
    """Whether `out` is nothing yet. Raises DataError where it is not a folder of shards."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not (out / MANIFEST).is_file():
        raise DataError(f"{out} exists and is not a folder of token shards. Choose another --out.")
    return False


def _check_same(out: Path, manifest: Manifest, inputs: dict[str, Any], plan: SplitSources) -> None:
    """Raise DataError where finished shards were made from other inputs."""
    differences = [
        "another tokenizer" if name == "tokenizer" else f"{name} {manifest.options.get(name)!r}"
        for name in inputs
        if name != "paths" and manifest.options.get(name) != inputs[name]
    ]
    if not _can_be_read_again(plan):
        differences.append("standard input, which cannot be compared")
    elif [_contents(source) for source in manifest.sources] != list(map(_contents, plan.infos)):
        differences.append("other texts")
    if differences:
        raise DataError(
            f"{out} holds shards made with {', '.join(differences)}. "
            "Choose another --out, or replace it with --overwrite."
        )


def _contents(info: SourceInfo) -> tuple[str, str | None, int, int]:
    """What is compared of a source. A file may have moved; a data set of the hub has its name."""
    return "" if info.modified else info.name, info.split, info.size, info.modified


def _can_be_read_again(plan: SplitSources) -> bool:
    """False with standard input or a pipe."""
    return all(source.kind == "hub" or source.modified for source, _ in plan.sources)


@contextlib.contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Make the work folder and keep other processes out of it."""
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()) and not (work / _LOCK).is_file():
        raise DataError(f"{work} holds other files; unfinished work would be kept there. Move it.")
    with (work / _LOCK).open("w") as file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DataError(f"Another process is preparing {work} at the moment.") from error
        yield


def _remove_temporary(folder: Path) -> None:
    """Remove what only an unfinished preparation needs."""
    for pattern in _TEMPORARY:
        for path in folder.glob(pattern):
            path.unlink()


@dataclasses.dataclass
class _Preparation:
    """The work on one folder, from its last finished piece to its manifest."""

    work: Path
    plan: SplitSources
    options: CorpusOptions
    inputs: dict[str, Any]
    tokenizer: Tokenizer
    progress: ProgressCallback

    def __post_init__(self) -> None:
        self.dtype = token_dtype(self.tokenizer.vocab_size)
        self.pieces = Pieces(self.work)
        self.deduplicator = Deduplicator(
            self.plan.fraction, keep_duplicates=self.options.keep_duplicates
        )

    def encode(self) -> None:
        """Read and encode all that is left."""
        self._resume()
        self._announce()
        began, text_bytes = time.perf_counter(), 0
        writers: dict[str, ShardWriter] = {}
        texts = read_batches(
            self.plan, self.options, self.deduplicator, self.pieces.last, len(self.pieces)
        )
        batches = encode_batches(texts, self.tokenizer, self.dtype)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.closing(batches))
            for batch, tokens in batches:
                for split, (ids, ends) in tokens.items():
                    if split not in writers:
                        number = len(self.pieces.files(split))
                        writers[split] = ShardWriter(self.work, split, number, self.dtype)
                        stack.enter_context(writers[split].file)
                    writers[split].append(ids, ends)
                    self.tokens += len(ids)
                    self.documents += len(ends)
                if batch.piece is not None:
                    files = {split: writers[split].finish() for split in SPLITS if split in writers}
                    piece = dataclasses.replace(batch.piece, files=files)
                    self.pieces.add(piece, batch.digests)
                    writers.clear()
                text_bytes += batch.text_bytes
                rate = text_bytes / max(time.perf_counter() - began, 1e-9)
                total = self.plan.total_bytes
                self.progress(
                    PrepareProgress(self.documents, self.tokens, batch.read_bytes, total, rate)
                )

    def finish(self) -> None:
        """Write the manifest. Raises DataError where a split that is wanted has no document."""
        try:
            self._check_splits()
        except DataError:
            shutil.rmtree(self.work)
            raise
        self._write_manifest()

    def report_kept(self) -> None:
        """After an error: name the finished pieces, or remove a folder without any."""
        if len(self.pieces):
            self._note(
                f"{self.pieces.num_tokens:,} tokens encoded before the error are kept in "
                f"{self.work}; the next attempt continues there"
            )
        else:
            shutil.rmtree(self.work, ignore_errors=True)

    def _resume(self) -> None:
        """Load the finished pieces that are still valid, and remove everything else."""
        path = self.work / _INPUTS
        known = path.is_file() and read_json(path) == self.inputs
        if known and (self.work / TOKENIZER).is_file() and _can_be_read_again(self.plan):
            digests = self.pieces.load(self.plan.infos)
            for split in SPLITS:
                self.deduplicator.seen[split].update(digests[split])
        counts = self.pieces.last.counts
        self.deduplicator.duplicates = dict(counts.duplicates)
        self.deduplicator.overlap = counts.overlap
        self.tokens = self.pieces.num_tokens
        self.documents = sum(f.documents for split in SPLITS for f in self.pieces.files(split))
        self.pieces.remove_others({_LOCK})
        self.tokenizer.save(self.work / TOKENIZER)
        write_json(path, self.inputs)

    def _announce(self) -> None:
        """Notes on skipped files and resumed work."""
        skipped = self.plan.skipped
        if skipped:
            more = ", ..." if len(skipped) > 3 else ""
            self._note(f"{len(skipped)} files skipped: {', '.join(skipped[:3])}{more}")
        if len(self.pieces):
            self._note(f"resuming after {self.tokens:,} tokens that were prepared before")

    def _note(self, note: str) -> None:
        self.progress(PrepareProgress(note=note))

    def _check_splits(self) -> None:
        train, heldout = (
            sum(file.documents for file in self.pieces.files(split)) for split in SPLITS
        )
        if not train + heldout:
            raise no_text(tuple(source for source, _ in self.plan.sources))
        fraction = f"the validation fraction {self.plan.fraction}"
        if not train:
            raise DataError(
                f"The training split is empty: all {heldout} documents went to validation. "
                f"Add text, or lower {fraction}."
            )
        if self.plan.wants_validation and not heldout:
            raise DataError(
                f"The validation split is empty: none of the {train} documents went to it. "
                f"Add text, raise {fraction}, name a path as validation, or 0 for none; "
                "is the separator right?"
            )

    def _write_manifest(self) -> None:
        """Write the token counts and the manifest."""
        splits = SPLITS if self.plan.wants_validation else (TRAIN,)
        tokenizer, counts = self.tokenizer, self.pieces.last.counts
        for split in splits:
            total = np.zeros(tokenizer.vocab_size, dtype=np.int64)
            for number in range(len(self.pieces.files(split))):
                ids = np.memmap(shard_path(self.work, split, number), self.dtype, mode="r")
                for start in range(0, len(ids), _TOKENS_AT_ONCE):
                    chunk = ids[start : start + _TOKENS_AT_ONCE]
                    total += np.bincount(chunk, minlength=tokenizer.vocab_size)
            with replace_file(counts_path(self.work, split)) as file:
                np.save(file, total)
        manifest = Manifest(
            tokenizer_fingerprint=tokenizer.fingerprint,
            tokenizer_sha256=sha256(self.work / TOKENIZER),
            vocab_size=tokenizer.vocab_size,
            dtype=self.dtype.name,
            prefix_ids=tuple(tokenizer.prefix_ids),
            suffix_ids=tuple(tokenizer.suffix_ids),
            special_ids=tuple(sorted(tokenizer.special_ids)),
            options=self.inputs,
            splits={
                split: SplitInfo(
                    documents=sum(file.documents for file in self.pieces.files(split)),
                    tokens=sum(file.tokens for file in self.pieces.files(split)),
                    text_bytes=counts.text_bytes[split],
                    duplicates=counts.duplicates[split],
                    overlap=counts.overlap if split == TRAIN else 0,
                    excerpts=self.pieces.excerpts(split),
                    files=self.pieces.files(split),
                )
                for split in splits
            },
            sources=self.plan.infos,
        )
        manifest.save(self.work)
