"""Text to token shards: read once, encoded in parallel, resumable, the same bytes every time.

The work is done in `OUT.partial`, in tasks that do not depend on each other (`encode_tasks.py`).
After a crash, or after a bad file was corrected, the same call continues after the finished shards
of every task (`task_shards.py`). Several machines can each run a part of the tasks with
`prepare_part`. The last step merges the shards of all tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.data.documents import no_text_error
from trivium.data.encode_tasks import Task, TaskReader, encode_texts, list_tasks, shard_bytes
from trivium.data.shards import FORMAT_VERSION, MANIFEST, TOKENIZER, Manifest, Shards, SplitInfo
from trivium.data.sources import Paths, Source, list_paths
from trivium.data.splitting import CorpusOptions, SplitSources, plan_corpus, split_sources
from trivium.data.task_shards import TaskShards
from trivium.errors import DataError, TriviumError
from trivium.files import file_lock, move_folder, read_json, replace_folder, sha256, write_json
from trivium.messages import translated
from trivium.remote import cache_path, is_remote, upload
from trivium.text import Tokenizer

_INPUTS, _LOCK, _PARTS, _MERGED = "inputs.json", "lock", "parts", "merged"
_MARKERS = "[!.]*-*/*.json"  # of finished shards, also of earlier versions


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareProgress:
    """The progress of a preparation.

    Args:
        documents: the number of documents so far.
        tokens: the number of tokens so far.
        read_bytes: the number of bytes of the stored sources that have been read.
        total_bytes: the number of bytes of all sources; 0 if it is not known.
        bytes_per_second: UTF-8 bytes of text per second in this call.
        note: a message to show in place of the numbers.
    """

    documents: int = 0
    tokens: int = 0
    read_bytes: int = 0
    total_bytes: int = 0
    bytes_per_second: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return self.note
        read = f"{self.read_bytes / 1e6:,.1f}"
        if self.total_bytes:
            read += translated("progress.of_size", size=self.total_bytes / 1e6)
        return translated(
            "progress.encoding",
            read=read,
            documents=self.documents,
            tokens=self.tokens,
            rate=self.bytes_per_second / 1e6,
        )


ProgressCallback = Callable[[PrepareProgress], None]


def prepare(
    paths: Paths,
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    options: CorpusOptions | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    not_in_training: Collection[int] = (),
) -> Shards:
    """Read texts, split, deduplicate and encode them, and write token shards to `out`.

    Every document is stored as the tokenizer's prefix ids, its own ids and the suffix ids. A folder
    made from the same inputs is opened as it is, even when the texts themselves are gone; an
    interrupted call is resumed.

    Args:
        paths: Sources as `trivium.data.documents.list_texts` takes them.
        tokenizer: Turns texts into ids.
        out: The folder to make. For s3://bucket/shards it is made in the cache and copied.
        options: How the texts are read and split.
        overwrite: Replace shards that `out` already holds.
        progress: Called with a `PrepareProgress` about once a megabyte.
        not_in_training: Digests of documents that the training split must not have, since another
            source of a mix holds them out.

    Raises:
        DataError: Bad sources, an empty split, or an `out` that holds something else. Finished
            shards stay in `OUT.partial` for the next call.
    """
    folder, options = local_folder(out), options or CorpusOptions()
    if _is_free(folder) or overwrite:
        preparation = _Preparation(
            paths, tokenizer, folder, options, progress or (lambda _: None), not_in_training
        )
        preparation.run()
    else:
        _check_same(folder, _describe(paths, options, tokenizer), paths, options)
    shards = Shards.open(folder)
    if is_remote(out):
        upload(folder, str(out), last=MANIFEST)
    return shards


def prepare_part(
    paths: Paths,
    tokenizer: Tokenizer,
    out: str | Path,
    part: int,
    num_parts: int,
    *,
    options: CorpusOptions | None = None,
    progress: ProgressCallback | None = None,
) -> int:
    """Encode one of several parts of the texts, for `prepare` to merge.

    Parts can be made at the same time, by processes or machines that see the same texts and write
    to the same folder. When all parts are done, `prepare` with the same arguments merges them; it
    makes missing parts itself. The shards do not depend on the number of parts.

    Returns the number of tokens of the part.

    Args:
        paths, tokenizer, out, options, progress: As of `prepare`.
        part: Which part, from 1.
        num_parts: How many there are. A file is never in two parts.

    Raises:
        DataError: As of `prepare`, or unfinished work on `out` with other arguments.
    """
    if not 1 <= part <= num_parts:
        raise DataError(
            f"a part is a number from 1 to the number of parts, not {part}/{num_parts}."
        )
    if is_remote(out):
        raise DataError(
            f"parts are merged in a folder that all machines share, not in {out}: choose such an "
            "--out, and copy the finished shards."
        )
    out, options = Path(out).absolute(), options or CorpusOptions()
    preparation = _Preparation(paths, tokenizer, out, options, progress or (lambda _: None))
    if not _is_free(out):
        raise DataError(f"{out} is finished already: there is no part to prepare.")
    if not _can_be_read_again(preparation.plan):
        raise DataError("standard input cannot be read in parts: give files.")
    tasks = list_tasks(preparation.plan)[part - 1 :: num_parts]
    with _locked(preparation.work, shared=True):
        preparation.resume(tasks, is_part=True)
        preparation.encode(tasks)
    return preparation.shards.num_tokens


def texts_changed(shards: Shards, paths: Paths, validation: float | Paths) -> bool:
    """Return whether finished shards were made from other texts; False if the texts are gone."""
    try:
        plan = split_sources(paths, validation)
    except DataError:
        return False
    return _other_texts(shards.manifest, plan)


def local_folder(out: str | Path) -> Path:
    """Return the folder in which shards are made: `out`, or the cache for object storage."""
    return cache_path("prepare", str(out)) if is_remote(out) else Path(out).absolute()


def partial_folder(out: str | Path) -> Path:
    """Return the folder of unfinished work on `out`."""
    out = local_folder(out)
    return out.with_name(out.name + ".partial")


def unfinished_tokenizer(paths: Paths, out: str | Path, options: CorpusOptions) -> Path | None:
    """Return the tokenizer of an interrupted preparation of the same texts, or None."""
    folder = partial_folder(out)
    inputs = _unfinished_inputs(folder)
    if inputs is None or inputs != inputs | _describe(paths, options):
        return None
    return folder / TOKENIZER


def _unfinished_inputs(work: Path) -> dict[str, Any] | None:
    """Return the inputs of unfinished work, or None."""
    path = work / _INPUTS
    if not (path.is_file() and (work / TOKENIZER).is_file()):
        return None
    inputs = read_json(path)
    if not isinstance(inputs, dict):
        raise DataError(f"{path} is damaged. Remove {work} to begin anew.")
    return inputs


def _describe(
    paths: Paths, options: CorpusOptions, tokenizer: Tokenizer | None = None
) -> dict[str, Any]:
    """Return what decides the contents of shards, except the texts, as JSON values.

    The tokenizer decides it by its ids and by the ids around documents.
    """
    validation = options.validation
    if not isinstance(validation, int | float):
        validation = list(list_paths(validation))
    description: dict[str, Any] = {"format_version": FORMAT_VERSION}
    if tokenizer is not None:
        around = [list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)]
        description |= {"tokenizer": tokenizer.fingerprint, "document_tokens": around}
    return description | {
        "paths": list(list_paths(paths)),
        **dataclasses.asdict(options),
        "validation": validation,
        "control_tokens": list(options.control_tokens),
    }


def _is_free(out: Path) -> bool:
    """Return whether `out` is missing or empty. Raises DataError if it has something but shards."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not (out / MANIFEST).is_file():
        raise DataError(f"{out} exists and is not a folder of token shards. Choose another --out.")
    return False


def _check_same(out: Path, inputs: dict[str, Any], paths: Paths, options: CorpusOptions) -> None:
    """Raise DataError if finished shards were made from other inputs. The texts may be gone."""
    manifest = Manifest.load(out)
    try:
        plan = split_sources(paths, options.validation)
    except DataError:
        if manifest.options_of_text == inputs:
            return
        raise
    made = manifest.options_of_text
    differences = [
        "another tokenizer"
        if name in ("tokenizer", "document_tokens")
        else f"{name} {made.get(name)!r}"
        for name in inputs
        if name != "paths" and made.get(name) != inputs[name]
    ]
    if not _can_be_read_again(plan):
        differences.append("standard input, which cannot be compared")
    elif _other_texts(manifest, plan):
        differences.append("other texts")
    if differences:
        raise DataError(
            f"{out} holds shards made with {', '.join(differences)}. "
            "Choose another --out, or replace it with --overwrite."
        )


def _other_texts(manifest: Manifest, plan: SplitSources) -> bool:
    """Return whether shards were made from other texts."""
    return list(map(_contents, manifest.sources)) != list(map(_contents, plan.sources))


def _contents(source: Source) -> tuple[str, str | None, int, int]:
    """Return what is compared of a source. The name of a file is not, since it may have moved."""
    return "" if source.modified else source.name, source.split, source.size, source.modified


def _can_be_read_again(plan: SplitSources) -> bool:
    """Return whether all sources can be read again, unlike standard input or a pipe."""
    return all(source.kind == "hub" or source.modified for source in plan.sources)


@contextlib.contextmanager
def _locked(work: Path, *, shared: bool = False) -> Iterator[None]:
    """Create the work folder and lock it. Processes that make parts share the lock."""
    if work.is_dir() and any(work.iterdir()) and not (work / _LOCK).is_file():
        raise DataError(f"{work} holds other files; unfinished work would be kept there. Move it.")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock(work / _LOCK, shared=shared))
        except BlockingIOError:
            raise DataError(f"Another process is preparing {work} at the moment.") from None
        yield


@dataclasses.dataclass
class _Preparation:
    """The work on one folder, from its finished shards to its manifest."""

    paths: Paths
    tokenizer: Tokenizer
    out: Path
    options: CorpusOptions
    progress: ProgressCallback
    not_in_training: Collection[int] = ()

    def __post_init__(self) -> None:
        self.work = partial_folder(self.out)
        self.plan = plan_corpus(self.paths, self.options)
        self.inputs = _describe(self.paths, self.options, self.tokenizer)
        self.shards = TaskShards(self.work, self.tokenizer.vocab_size)

    def run(self) -> None:
        """Make the folder from the shards that are finished and those that are missing."""
        tasks = list_tasks(self.plan)
        with _locked(self.work):
            self.resume(tasks, is_part=False)
            self.encode(tasks)
            self.merge()
            move_folder(self.work / _MERGED, self.out)
            shutil.rmtree(self.work)

    def resume(self, tasks: Sequence[Task], *, is_part: bool) -> None:
        """Load the finished shards of tasks that are still valid.

        All other shards are removed, unless the tasks are a part. Raises DataError if the work of
        `prepare_part` with other arguments would be lost.
        """
        known, parts = _unfinished_inputs(self.work), self.work / _PARTS
        if known == self.inputs and _can_be_read_again(self.plan):
            self.shards.load(tasks)
        lost = len(list(self.work.glob(_MARKERS))) - len(self.shards.finished)
        is_foreign = known not in (None, self.inputs) if is_part else lost and parts.is_file()
        if is_foreign:
            raise DataError(
                f"{self.work} holds unfinished work with other texts (another name, size or time "
                "of modification), another tokenizer or other options. Give the same, remove the "
                "folder, or choose another --out."
            )
        if is_part:
            parts.touch()
        else:
            if lost:
                self._note(f"{lost} unfinished shards with other texts or options are removed")
            for path in self.work.iterdir():
                if path.is_dir() and path not in self.shards.finished:
                    shutil.rmtree(path)
        self.tokenizer.save(self.work)
        write_json(self.work / _INPUTS, self.inputs)

    def encode(self, tasks: Sequence[Task]) -> None:
        """Read and encode the rest of tasks. Notes tell which files are skipped and kept."""
        if skipped := self.plan.skipped:
            more = ", ..." if len(skipped) > 3 else ""
            self._note(f"{len(skipped)} files skipped: {', '.join(skipped[:3])}{more}")
        if self.plan.cut:
            share = self.plan.fraction
            self._note(f"there is one document: its last {share:.0%} are the validation split")
        if tokens := self.shards.num_tokens:
            self._note(f"resuming after {tokens:,} tokens that were prepared before")
        if not tasks:
            self._note("nothing to do: a file is never cut, and files below 64 MB are one part")
        try:
            self._encode(tasks)
        except TriviumError:
            if tokens := self.shards.num_tokens:
                self._note(
                    f"{tokens:,} tokens encoded before the error are kept in {self.work}; the next "
                    "attempt continues there"
                )
            elif not (self.work / _PARTS).is_file():
                shutil.rmtree(self.work, ignore_errors=True)
            raise

    def _encode(self, tasks: Sequence[Task]) -> None:
        total_bytes = sum(task.size for task in tasks)
        began, text_bytes, read_bytes = time.perf_counter(), 0, 0
        options, shards = self.options, self.shards
        tokenizer = self.tokenizer.reading(options.special_tokens, control=options.control_tokens)

        def report(documents: int, tokens: int) -> None:
            documents += sum(shard.documents for shard in shards.finished.values())
            read = read_bytes + reader.read_bytes
            rate = (text_bytes + reader.text_bytes) / max(time.perf_counter() - began, 1e-9)
            tokens += shards.num_tokens
            self.progress(PrepareProgress(documents, tokens, read, total_bytes, rate))

        for task in tasks:
            reader = TaskReader(self.plan, task, options)
            for index in itertools.count():
                path = shards.path(task, index)
                if path in shards.finished:
                    reader.skip += shards.finished[path].documents
                else:
                    texts = reader.read_shard(shard_bytes(self.plan, index))
                    with contextlib.closing(encode_texts(texts, tokenizer)) as batches:
                        shards.write(path, reader, batches, report)
                    text_bytes += reader.text_bytes
                if shards.finished[path].is_last:
                    break
            read_bytes += task.size

    def merge(self) -> None:
        """Merge the shards. Raises DataError if a split that is wanted has no document."""
        tokenizer = self.tokenizer
        with replace_folder(self.work / _MERGED) as merged:
            splits = self.shards.merge(merged, self.plan.names, self.options, self.not_in_training)
            self._check_splits(splits)
            tokenizer.save(merged)
            manifest = Manifest(
                tokenizer_fingerprint=tokenizer.fingerprint,
                tokenizer_sha256=sha256(merged / TOKENIZER),
                vocab_size=tokenizer.vocab_size,
                dtype=self.shards.dtype.name,
                prefix_ids=tuple(tokenizer.prefix_ids),
                suffix_ids=tuple(tokenizer.suffix_ids),
                special_ids=tokenizer.special_ids,
                options=self.inputs,
                splits=splits,
                sources=self.plan.sources,
            )
            manifest.save(merged)

    def _note(self, note: str) -> None:
        self.progress(PrepareProgress(note=note))

    def _check_splits(self, splits: Mapping[str, SplitInfo]) -> None:
        """Remove the work and raise DataError if a split has no document."""
        total = sum(info.documents for info in splits.values())
        empty = next((name for name, info in splits.items() if not info.documents), None)
        if empty is None:
            return
        shutil.rmtree(self.work)
        if not total:
            raise no_text_error(self.plan.sources)
        raise DataError(
            f"The {empty} split is empty: all {total} documents went to the other one. Add text, "
            f"change the validation fraction {self.plan.fraction}, name a path as validation, or "
            "0 for none; is the separator right?"
        )
