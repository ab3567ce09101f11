"""Text to token shards: resumable, bounded in memory, byte for byte the same however interrupted.

Work goes on in `OUT.partial`, with a journal of how far it has come, and is renamed to `OUT` when
all is there. After a crash the same call goes on from the last journal entry: the sources before
it are not read again, and nothing before it is encoded again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trivium.data.formats import ReadOptions
from trivium.data.journal import (
    JOURNAL,
    SPLITS,
    Checkpoint,
    Inputs,
    describe_inputs,
    open_digests,
    partial_folder,
    read_checkpoint,
    write_checkpoint,
)
from trivium.data.shards import (
    MANIFEST,
    TOKENIZER,
    TRAIN,
    VALIDATION,
    Manifest,
    Shards,
    SourceInfo,
    SplitInfo,
    file_sha256,
    read_manifest,
)
from trivium.data.splits import Divider, Paths, Plan, plan_sources
from trivium.data.stream import Place, TokenBatch, encode_batches, read_batches
from trivium.data.writer import SplitWriter, sync_folder, token_dtype, write_durably
from trivium.errors import DataError, TriviumError

if sys.platform != "win32":
    import fcntl
if TYPE_CHECKING:
    from trivium.text import Tokenizer

SHARD_TOKENS = 1 << 27
CHECKPOINT_BYTES = 1 << 26
_LOCK = "lock"


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a preparation is.

    Documents, tokens and UTF-8 bytes of text kept so far; `read_bytes` of `total_bytes` of the
    sources as stored (0 where the total is not known); seconds and rates are of this call alone.
    A `note` is a line that wants to be shown.
    """

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    read_bytes: int = 0
    total_bytes: int = 0
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    tokens_per_second: float = 0.0
    note: str = ""


def prepare(
    paths: Paths,
    out: str | Path,
    tokenizer: Tokenizer,
    *,
    validation: float | Paths = 0.1,
    separator: str = "blank",
    text_field: str = "text",
    errors: str = "strict",
    keep_duplicates: bool = False,
    overwrite: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    progress: Callable[[Progress], None] | None = None,
) -> Shards:
    """Read texts, divide them, drop repeats, encode them, and write token shards to `out`.

    Every document stands as the tokenizer's prefix ids, its own ids and the suffix ids. A folder
    that was made from the same inputs is opened as it is; an interrupted call is gone on with.

    Args:
        paths: Sources as `read_documents` takes them.
        out: The folder to make.
        tokenizer: What turns texts into ids.
        validation: Fraction of the documents, chosen by a hash of their text, or paths.
        separator: What parts the documents of plain text.
        text_field: The field of a record that is its text.
        errors: "strict", or "replace" to go on at invalid UTF-8.
        keep_duplicates: Keep exact repeats of a document.
        overwrite: Replace shards that `out` already holds, whatever made them.
        shard_tokens: Tokens after which a shard is closed.
        checkpoint_bytes: Bytes of text between journal entries: what a crash may cost.
        progress: Called with a `Progress` about once a megabyte.

    Raises:
        DataError: Bad sources, an empty split, or an `out` that holds something else. Nothing is
            left behind then.
    """
    plan = plan_sources(paths, validation)
    options = ReadOptions(separator, text_field, errors)
    inputs = describe_inputs(
        plan, options, tokenizer, keep_duplicates=keep_duplicates, shard_tokens=shard_tokens
    )
    out = Path(out).absolute()
    if _is_finished(out, inputs, overwrite=overwrite):
        _tidy(out)
        return Shards.open(out)
    work = partial_folder(out)
    with _locked(work):
        preparation = _Preparation(work, plan, options, inputs, tokenizer, progress)
        try:
            preparation.run(checkpoint_bytes)
        except TriviumError:
            preparation.close()
            shutil.rmtree(work, ignore_errors=True)
            raise
        finally:
            preparation.close()
        _publish(work, out)
    return Shards.open(out)


def _is_finished(out: Path, inputs: Inputs, *, overwrite: bool) -> bool:
    """Whether `out` is what would be made. Raises DataError where it is something else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / MANIFEST).is_file():
        raise DataError(f"{out} exists and is no folder of token shards. Choose another --out.")
    if overwrite:
        return False
    differences = inputs.differences(read_manifest(out))
    if differences:
        raise DataError(
            f"{out} holds shards made with {', '.join(differences)}. "
            "Choose another --out, or pass --overwrite to replace it."
        )
    return True


@contextlib.contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Make the work folder and keep other processes out of it."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / _LOCK).open("w") as file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DataError(f"Another process is preparing {work} just now.") from error
        yield


def _publish(work: Path, out: Path) -> None:
    """Give the finished work its name, putting aside what had it before."""
    old = out.with_name(out.name + ".replaced")
    if old.exists():
        shutil.rmtree(old)
    if out.exists():
        os.replace(out, old)
    os.replace(work, out)
    sync_folder(out.parent)
    if old.exists():
        shutil.rmtree(old)
    _tidy(out)


def _tidy(out: Path) -> None:
    """Remove what only an unfinished preparation needs."""
    for pattern in (JOURNAL, _LOCK, "*.ends", "*.digests", "*.partial"):
        for path in out.glob(pattern):
            path.unlink()


class _Preparation:
    """The work on one folder, from its last checkpoint to its manifest."""

    def __init__(
        self,
        work: Path,
        plan: Plan,
        options: ReadOptions,
        inputs: Inputs,
        tokenizer: Tokenizer,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.work = work
        self.plan = plan
        self.options = options
        self.inputs = inputs
        self.tokenizer = tokenizer
        self.progress = progress
        self.dtype = token_dtype(tokenizer.vocab_size)
        start = read_checkpoint(work, inputs)
        self.resumed = start is not None
        if start is None:
            start = Checkpoint.beginning()
            _clear(work)
            tokenizer.save(work / TOKENIZER)
        self.place = start.place
        self.divider = Divider(plan.fraction, keep_duplicates=inputs.options["keep_duplicates"])
        self.divider.duplicates.update(start.place.duplicates)
        self.divider.leaks = start.place.leaks
        self.writers: dict[str, SplitWriter] = {}
        self.digest_files = {}
        self.num_digests = dict(start.digests)
        for split in SPLITS:
            self.digest_files[split], seen = open_digests(work, split, start.digests[split])
            self.divider.seen[split].update(seen)
            self.writers[split] = SplitWriter(
                work, split, self.dtype, inputs.options["shard_tokens"], start.files[split]
            )
        self._begun = time.perf_counter()
        self._begun_with = (self._text_bytes(), self._tokens())

    def run(self, checkpoint_bytes: int) -> None:
        """Do all that is left, and write the manifest."""
        self._announce()
        # Even before the first document, so that a tokenizer trained for this is found again.
        self._checkpoint()
        done = self._text_bytes()
        batches = read_batches(self.plan, self.options, self.divider, self.place)
        for tokens in encode_batches(batches, self.tokenizer, self.dtype):
            self._write(tokens)
            if tokens.batch.place is not None:
                self.place = tokens.batch.place
                if self._text_bytes() - done >= checkpoint_bytes:
                    self._checkpoint()
                    done = self._text_bytes()
            self._report(tokens.batch.read_bytes)
        self._check_splits()
        self._checkpoint()
        write_durably(self.work / MANIFEST, self._manifest().to_json().encode())

    def close(self) -> None:
        """Close every file."""
        for writer in self.writers.values():
            writer.close()
        for file in self.digest_files.values():
            file.close()

    def _write(self, tokens: TokenBatch) -> None:
        for split, (ids, ends) in tokens.tokens.items():
            self.writers[split].append(ids, ends)
        for split, digests in tokens.batch.digests.items():
            self.digest_files[split].write(np.array(digests, dtype="<u8").tobytes())
            self.num_digests[split] += len(digests)

    def _checkpoint(self) -> None:
        """Make everything written durable, then say so in the journal."""
        for writer in self.writers.values():
            writer.sync()
        for file in self.digest_files.values():
            file.flush()
            os.fsync(file.fileno())
        files = {split: writer.files for split, writer in self.writers.items()}
        checkpoint = Checkpoint(self.place, files, dict(self.num_digests))
        write_checkpoint(self.work, self.inputs, checkpoint)

    def _text_bytes(self) -> int:
        return sum(self.place.text_bytes.values())

    def _tokens(self) -> int:
        return sum(writer.tokens for writer in self.writers.values())

    def _announce(self) -> None:
        """Notes on what is left out and what is gone on with."""
        skipped = self.plan.skipped
        if skipped:
            more = ", ..." if len(skipped) > 3 else ""
            self._note(f"{len(skipped)} files passed over: {', '.join(skipped[:3])}{more}")
        if self.resumed:
            self._note(f"going on after {self._tokens():,} tokens that were prepared before")

    def _note(self, note: str) -> None:
        if self.progress is not None:
            self.progress(Progress(note=note))

    def _report(self, read_bytes: int) -> None:
        if self.progress is None:
            return
        seconds = time.perf_counter() - self._begun
        text_bytes, tokens = self._text_bytes(), self._tokens()
        self.progress(
            Progress(
                documents=sum(writer.documents for writer in self.writers.values()),
                tokens=tokens,
                text_bytes=text_bytes,
                read_bytes=read_bytes,
                total_bytes=sum(source.size for source, _ in self.plan.sources),
                seconds=seconds,
                bytes_per_second=(text_bytes - self._begun_with[0]) / max(seconds, 1e-9),
                tokens_per_second=(tokens - self._begun_with[1]) / max(seconds, 1e-9),
            )
        )

    def _check_splits(self) -> None:
        """Raise DataError where a split that is wanted got nothing."""
        train, held = (self.writers[split].documents for split in (TRAIN, VALIDATION))
        if not train + held:
            names = ", ".join(source.name for source, _ in self.plan.sources[:5])
            raise DataError(f"There is no text in {names}.")
        share = f"the validation fraction {self.plan.fraction}"
        if not train:
            raise DataError(
                f"The training split is empty: all {held} documents fell to validation. "
                f"Add text, or lower {share}."
            )
        if self.plan.wants_validation and not held:
            raise DataError(
                f"The validation split is empty: none of the {train} documents fell to it. "
                f"Add text, raise {share}, give a path as validation, or 0 for none; "
                "is the separator right?"
            )

    def _manifest(self) -> Manifest:
        """The manifest; writes the indices and counts it speaks of."""
        splits = (TRAIN, VALIDATION) if self.plan.wants_validation else (TRAIN,)
        vocab_size = self.tokenizer.vocab_size
        return Manifest(
            tokenizer_fingerprint=self.inputs.fingerprint,
            tokenizer_sha256=file_sha256(self.work / TOKENIZER),
            vocab_size=vocab_size,
            dtype=self.dtype.name,
            prefix_ids=tuple(self.tokenizer.prefix_ids),
            suffix_ids=tuple(self.tokenizer.suffix_ids),
            special_ids=tuple(sorted(self.tokenizer.special_ids)),
            options=self.inputs.options,
            splits={
                split: _split_info(split, self.writers[split], self.place, vocab_size)
                for split in splits
            },
            sources=tuple(
                SourceInfo(source.name, split, size, source.modified, sha256)
                for (source, split), (size, sha256) in zip(self.plan.sources, self.place.finished)
            ),
        )


def _split_info(split: str, writer: SplitWriter, place: Place, vocab_size: int) -> SplitInfo:
    return SplitInfo(
        documents=writer.documents,
        tokens=writer.tokens,
        text_bytes=place.text_bytes[split],
        duplicates=place.duplicates[split],
        leaks=place.leaks if split == TRAIN else 0,
        files=writer.finish(vocab_size),
    )


def _clear(work: Path) -> None:
    """Empty the work folder but for its lock."""
    for path in work.iterdir():
        if path.name != _LOCK:
            path.unlink()
