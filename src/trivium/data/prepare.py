"""Preparation of token shards from text: parallel, resumable and reproducible byte for byte.

The work is done in the folder `OUT.partial`, in independent tasks (`encode_tasks.py`). After a
crash, or after a corrupt file was corrected, the same call continues after the finished shards of
every task (`task_shards.py`). Several machines can each encode a part of the tasks with
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

from trivium.data.documents import make_no_text_error
from trivium.data.encode_tasks import Task, TaskReader, choose_shard_size, encode_parts, make_tasks
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
_MARKERS = "[!.]*-*/*.json"  # the markers of finished shards, also of earlier versions


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareProgress:
    """The progress of a preparation: a message, or counts.

    Args:
        documents: the number of documents so far.
        tokens: the number of tokens so far.
        read_bytes: the number of bytes of the stored sources that have been read.
        total_bytes: the total size of the sources in bytes; 0 if it is not known.
        bytes_per_second: the throughput of this call, in UTF-8 bytes of text per second.
        note: a message to show instead of the counts.
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
    """Read, split, deduplicate and encode texts, and write the token shards to `out`.

    Every document is stored as the tokenizer's prefix ids, the ids of the text and the suffix ids.
    If `out` already contains shards made from the same inputs, they are opened without any work,
    even if the texts no longer exist. An interrupted call is resumed.

    Args:
        paths: the text sources, as for `trivium.data.documents.read_documents`.
        tokenizer: the tokenizer.
        out: the folder to create. For a URL such as s3://bucket/shards, the shards are created in
            the cache and then uploaded.
        options: the options for reading and splitting the texts.
        overwrite: whether to replace shards that `out` already contains.
        progress: a function that is called with a `PrepareProgress` about once per megabyte.
        not_in_training: hashes of documents to drop from the training split, because they belong to
            the validation split of another source in a mixture.

    Returns:
        The opened shards.

    Raises:
        DataError: a source cannot be read, a split is empty, or `out` contains something else. The
            finished shards stay in `OUT.partial` for the next call.
    """
    folder, options = local_folder(out), options or CorpusOptions()
    if _is_missing_or_empty(folder) or overwrite:
        preparation = _Preparation(
            paths, tokenizer, folder, options, progress or (lambda _: None), not_in_training
        )
        preparation.run()
    else:
        _check_inputs(folder, _describe_inputs(paths, options, tokenizer), paths, options)
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
    """Encode one of several parts of the texts. Returns the number of tokens in the part.

    Processes or machines that see the same texts and write to the same folder can encode the parts
    at the same time. When all parts are done, call `prepare` with the same arguments to merge them;
    it also encodes missing parts. The shards do not depend on the number of parts.

    Args:
        paths, tokenizer, out, options, progress: the same arguments as for `prepare`.
        part: the number of the part, from 1 to `num_parts`.
        num_parts: the number of parts. A file always belongs to a single part.

    Raises:
        DataError: a source cannot be read, or `OUT.partial` contains unfinished work with other
            arguments.
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
    if not _is_missing_or_empty(out):
        raise DataError(f"{out} is finished already: there is no part to prepare.")
    if not _can_reread(preparation.plan):
        raise DataError("standard input cannot be read in parts: give files.")
    tasks = make_tasks(preparation.plan)[part - 1 :: num_parts]
    with _lock_folder(preparation.work, shared=True):
        preparation.resume(tasks, is_part=True)
        preparation.encode(tasks)
    return preparation.shards.num_tokens


def have_texts_changed(shards: Shards, paths: Paths, validation: float | Paths) -> bool:
    """Return whether the texts at `paths` differ from those that finished shards were made from.

    Returns False if the texts no longer exist.
    """
    try:
        plan = split_sources(paths, validation)
    except DataError:
        return False
    return _texts_differ(shards.manifest, plan)


def local_folder(out: str | Path) -> Path:
    """Return the local folder to write shards to: `out`, or a cache folder if `out` is remote."""
    return cache_path("prepare", str(out)) if is_remote(out) else Path(out).absolute()


def partial_folder(out: str | Path) -> Path:
    """Return the folder `OUT.partial` for the unfinished shards of `out`."""
    out = local_folder(out)
    return out.with_name(out.name + ".partial")


def find_unfinished_tokenizer(paths: Paths, out: str | Path, options: CorpusOptions) -> Path | None:
    """Return the tokenizer path of an interrupted `prepare` call, or None if there is none.

    The interrupted call must have had the same texts and options.
    """
    folder = partial_folder(out)
    inputs = _read_unfinished_inputs(folder)
    if inputs is None or inputs != inputs | _describe_inputs(paths, options):
        return None
    return folder / TOKENIZER


def _read_unfinished_inputs(folder: Path) -> dict[str, Any] | None:
    """Read the recorded inputs (sources and settings) of an interrupted `prepare` call.

    Returns None if there are none. `folder` is the folder of unfinished work.
    """
    path = folder / _INPUTS
    if not (path.is_file() and (folder / TOKENIZER).is_file()):
        return None
    inputs = read_json(path)
    if not isinstance(inputs, dict):
        raise DataError(f"{path} is corrupt. Remove {folder} to start again.")
    return inputs


def _describe_inputs(
    paths: Paths, options: CorpusOptions, tokenizer: Tokenizer | None = None
) -> dict[str, Any]:
    """Return everything that determines the shards except the texts, as JSON-serializable values.

    The tokenizer is represented by its fingerprint and by the ids it adds around documents.
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


def _is_missing_or_empty(out: Path) -> bool:
    """Return whether the folder `out` is missing or empty; False if it contains token shards.

    Raises DataError if the folder contains anything else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not (out / MANIFEST).is_file():
        raise DataError(f"{out} exists and is not a folder of token shards. Choose another --out.")
    return False


def _check_inputs(out: Path, inputs: dict[str, Any], paths: Paths, options: CorpusOptions) -> None:
    """Raise DataError if finished shards were made from other inputs than the given ones.

    Texts that no longer exist are not compared.
    """
    manifest = Manifest.load(out)
    try:
        plan = split_sources(paths, options.validation)
    except DataError:
        if manifest.full_options == inputs:
            return
        raise
    made = manifest.full_options
    differences = [
        "another tokenizer"
        if name in ("tokenizer", "document_tokens")
        else f"{name} {made.get(name)!r}"
        for name in inputs
        if name != "paths" and made.get(name) != inputs[name]
    ]
    if not _can_reread(plan):
        differences.append("standard input, which cannot be compared")
    elif _texts_differ(manifest, plan):
        differences.append("other texts")
    if differences:
        raise DataError(
            f"{out} holds shards made with {', '.join(differences)}. "
            "Choose another --out, or replace it with --overwrite."
        )


def _texts_differ(manifest: Manifest, plan: SplitSources) -> bool:
    """Return whether finished shards were made from other texts than those in `plan`."""
    return list(map(_get_identity, manifest.sources)) != list(map(_get_identity, plan.sources))


def _get_identity(source: Source) -> tuple[str, str | None, int, int]:
    """Return the properties of a source that must be equal for its text to count as unchanged.

    The name of a file is not among them, since the file may have been moved.
    """
    return "" if source.modified else source.name, source.split, source.size, source.modified


def _can_reread(plan: SplitSources) -> bool:
    """Return whether all sources can be read a second time, unlike standard input or a pipe."""
    return all(source.kind == "hub" or source.modified for source in plan.sources)


@contextlib.contextmanager
def _lock_folder(work: Path, *, shared: bool = False) -> Iterator[None]:
    """Context manager that creates the work folder `work` and locks it.

    A shared lock allows several `prepare_part` calls at a time. Raises DataError if another process
    holds the lock, or if the folder contains other files.
    """
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
    """One call of `prepare` or `prepare_part`: encodes the tasks and merges their shards.

    The arguments are those of `prepare`.
    """

    paths: Paths
    tokenizer: Tokenizer
    out: Path
    options: CorpusOptions
    progress: ProgressCallback
    not_in_training: Collection[int] = ()

    def __post_init__(self) -> None:
        self.work = partial_folder(self.out)
        self.plan = plan_corpus(self.paths, self.options)
        self.inputs = _describe_inputs(self.paths, self.options, self.tokenizer)
        self.shards = TaskShards(self.work, self.tokenizer.vocab_size)

    def run(self) -> None:
        """Encode what is missing, merge the shards of all tasks and move the result to `out`."""
        tasks = make_tasks(self.plan)
        with _lock_folder(self.work):
            self.resume(tasks, is_part=False)
            self.encode(tasks)
            self.merge()
            move_folder(self.work / _MERGED, self.out)
            shutil.rmtree(self.work)

    def resume(self, tasks: Sequence[Task], *, is_part: bool) -> None:
        """Load the finished shards of an earlier call that are still valid, and record the inputs.

        Invalid shards are deleted, unless only a part of the tasks is encoded (`is_part`). Raises
        DataError if that would destroy the work of `prepare_part` with other arguments.
        """
        known, parts = _read_unfinished_inputs(self.work), self.work / _PARTS
        if known == self.inputs and _can_reread(self.plan):
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
                self._log(f"{lost} unfinished shards with other texts or options are removed")
            for path in self.work.iterdir():
                if path.is_dir() and path not in self.shards.finished:
                    shutil.rmtree(path)
        self.tokenizer.save(self.work)
        write_json(self.work / _INPUTS, self.inputs)

    def encode(self, tasks: Sequence[Task]) -> None:
        """Encode the remaining documents of tasks, and report skipped files and resumed work."""
        if skipped := self.plan.skipped:
            more = ", ..." if len(skipped) > 3 else ""
            self._log(f"{len(skipped)} files skipped: {', '.join(skipped[:3])}{more}")
        if self.plan.cut:
            share = self.plan.fraction
            self._log(f"there is one document: its last {share:.0%} are the validation split")
        if tokens := self.shards.num_tokens:
            self._log(f"resuming after {tokens:,} tokens that were prepared before")
        if not tasks:
            self._log("nothing to do: a file is never cut, and files below 64 MB are one part")
        try:
            self._encode_tasks(tasks)
        except TriviumError:
            if tokens := self.shards.num_tokens:
                self._log(
                    f"{tokens:,} tokens encoded before the error are kept in {self.work}; the next "
                    "attempt continues there"
                )
            elif not (self.work / _PARTS).is_file():
                shutil.rmtree(self.work, ignore_errors=True)
            raise

    def _encode_tasks(self, tasks: Sequence[Task]) -> None:
        """Read and encode the documents of tasks that are not yet in finished shards."""
        total_bytes = sum(task.size for task in tasks)
        began, text_bytes, read_bytes = time.perf_counter(), 0, 0
        options, shards = self.options, self.shards
        tokenizer = self.tokenizer.reading(options.special_tokens, control=options.control_tokens)

        def report(documents: int, tokens: int) -> None:
            """Pass the progress of all tasks to the progress callback."""
            documents += sum(shard.documents for shard in shards.finished.values())
            read = read_bytes + reader.read_bytes
            rate = (text_bytes + reader.text_bytes) / max(time.perf_counter() - began, 1e-9)
            tokens += shards.num_tokens
            self.progress(PrepareProgress(documents, tokens, read, total_bytes, rate))

        for task in tasks:
            reader = TaskReader(self.plan, task, options)
            for index in itertools.count():
                path = shards.shard_folder(task, index)
                if path in shards.finished:
                    reader.skip += shards.finished[path].documents
                else:
                    texts = reader.read_shard(choose_shard_size(self.plan, index))
                    with contextlib.closing(encode_parts(texts, tokenizer)) as batches:
                        shards.write(path, reader, batches, report)
                    text_bytes += reader.text_bytes
                if shards.finished[path].is_last:
                    break
            read_bytes += task.size

    def merge(self) -> None:
        """Merge the shards of all tasks into one folder, and write the tokenizer and the manifest.

        Raises DataError if a requested split is empty.
        """
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

    def _log(self, note: str) -> None:
        """Pass a message for the user to the progress callback."""
        self.progress(PrepareProgress(note=note))

    def _check_splits(self, splits: Mapping[str, SplitInfo]) -> None:
        """Delete the unfinished work and raise DataError if a split has no document."""
        total = sum(info.documents for info in splits.values())
        empty = next((name for name, info in splits.items() if not info.documents), None)
        if empty is None:
            return
        shutil.rmtree(self.work)
        if not total:
            raise make_no_text_error(self.plan.sources)
        raise DataError(
            f"The {empty} split is empty: all {total} documents went to the other one. Add text, "
            f"change the validation fraction {self.plan.fraction}, name a path as validation, or "
            "0 for none; is the separator right?"
        )
