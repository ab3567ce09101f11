"""Preparation of token shards from text: parallel, resumable and reproducible byte for byte.

The texts are divided into independent encoding tasks (`encode_tasks.py`), whose shards are written
to the folder `OUT.partial` (`task_shards.py`). If a call is interrupted, or fails because of a
corrupt file, the next call with the same arguments keeps the finished shards. Several machines can
each encode a part of the tasks with `prepare_part`. The last step merges the shards of all tasks.
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
from trivium.data.encode_tasks import Task, TaskReader, choose_shard_size, encode_texts, make_tasks
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
    """The progress of a preparation: counts, or a message for the user.

    Args:
        documents: the number of documents encoded so far.
        tokens: the number of tokens encoded so far.
        read_bytes: how many bytes of the sources have been read.
        total_bytes: the total size of the sources in bytes; 0 if the size is not known.
        bytes_per_second: the throughput of this call, in UTF-8 bytes of text per second.
        note: a message to show instead of the counts; empty if there is none.
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

    The tokens of a document are the tokenizer's prefix ids, the ids of the text and the suffix ids.
    If `out` already contains shards of the same texts and settings, they are opened, and nothing is
    encoded; the texts need not exist any more. An interrupted call is resumed.

    Args:
        paths: the text sources, as for `trivium.data.documents.read_documents`.
        tokenizer: the tokenizer.
        out: the folder to create. For a URL such as s3://bucket/shards, the shards are created in
            the cache and then uploaded.
        options: the options for reading and splitting the texts.
        overwrite: whether to replace shards that `out` already contains.
        progress: a function that is called with a `PrepareProgress` about once per megabyte.
        not_in_training: hashes of documents to drop from the training split. In a mixture, these
            are the validation documents of the other sources.

    Returns:
        The opened shards.

    Raises:
        DataError: a source cannot be read, a split is empty, or `out` contains other files or
            shards made with other inputs. If a source cannot be read, the finished shards stay in
            `OUT.partial` for the next call.
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

    Several processes or machines can encode the parts at the same time, if they read the same texts
    and write to the same folder. When all parts are done, call `prepare` with the same arguments.
    It merges the parts, and encodes missing parts. The merged shards do not depend on the number of
    parts.

    Args:
        paths, tokenizer, out, options, progress: the same arguments as for `prepare`.
        part: the number of the part, from 1 to `num_parts`.
        num_parts: the number of parts. A file is never split between parts.

    Raises:
        DataError: a source cannot be read or is standard input, `out` is already finished, or
            `OUT.partial` contains unfinished work of a call with other arguments.
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
    """Return whether the texts at `paths` differ from the texts that shards were made from.

    Files are compared by size and modification time. Returns False if they no longer exist.
    """
    try:
        plan = split_sources(paths, validation)
    except DataError:
        return False
    return _texts_differ(shards.manifest, plan)


def local_folder(out: str | Path) -> Path:
    """Return the local folder for the shards: `out`, or a cache folder if `out` is a URL."""
    return cache_path("prepare", str(out)) if is_remote(out) else Path(out).absolute()


def partial_folder(out: str | Path) -> Path:
    """Return the work folder `OUT.partial`, which contains the unfinished shards for `out`."""
    out = local_folder(out)
    return out.with_name(out.name + ".partial")


def find_unfinished_tokenizer(paths: Paths, out: str | Path, options: CorpusOptions) -> Path | None:
    """Return the path of the tokenizer that an interrupted `prepare` call used.

    Returns None if no call with the same texts and options was interrupted.
    """
    folder = partial_folder(out)
    inputs = _read_recorded_inputs(folder)
    if inputs is None or inputs != inputs | _describe_inputs(paths, options):
        return None
    return folder / TOKENIZER


def _read_recorded_inputs(folder: Path) -> dict[str, Any] | None:
    """Read the inputs that an interrupted `prepare` call recorded: its sources and settings.

    `folder` is the work folder. Returns None if there was no such call.
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
    """Return all inputs that determine the shards, except the texts themselves.

    The result is a dictionary for JSON. The tokenizer is represented by its fingerprint and by the
    ids that it adds around documents.
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
    """Return True if the folder `out` is missing or empty, and False if it contains token shards.

    Raises DataError if it contains anything else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not (out / MANIFEST).is_file():
        raise DataError(f"{out} exists and is not a folder of token shards. Choose another --out.")
    return False


def _check_inputs(out: Path, inputs: dict[str, Any], paths: Paths, options: CorpusOptions) -> None:
    """Raise DataError if the shards in `out` were made with other inputs.

    `inputs` are the inputs from `_describe_inputs`. Texts that no longer exist are not compared.
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
    """Return whether the texts in `plan` differ from the texts from which the shards were made."""
    return list(map(_get_identity, manifest.sources)) != list(map(_get_identity, plan.sources))


def _get_identity(source: Source) -> tuple[str, str | None, int, int]:
    """Return the properties of a source that change when its text changes.

    The name of a file is not one of them, because the file may have been moved.
    """
    return "" if source.modified else source.name, source.split, source.size, source.modified


def _can_reread(plan: SplitSources) -> bool:
    """Return whether all sources can be read a second time, unlike standard input or a pipe."""
    return all(source.kind == "hub" or source.modified for source in plan.sources)


@contextlib.contextmanager
def _lock_folder(work: Path, *, shared: bool = False) -> Iterator[None]:
    """Context manager that creates the work folder `work` and locks it.

    A shared lock allows several `prepare_part` calls at the same time.

    Raises DataError if another process holds the lock, or if the folder contains other files.
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
    """One call of `prepare` or `prepare_part`: encodes texts, and merges the shards.

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
        """Encode all texts that are not encoded yet, and write the merged shards to `out`."""
        tasks = make_tasks(self.plan)
        with _lock_folder(self.work):
            self.resume(tasks, is_part=False)
            self.encode(tasks)
            self.merge()
            move_folder(self.work / _MERGED, self.out)
            shutil.rmtree(self.work)

    def resume(self, tasks: Sequence[Task], *, is_part: bool) -> None:
        """Load the finished shards of an earlier call, and record the inputs of this call.

        Shards made with other inputs are not loaded. They are deleted, unless this call encodes
        only a part of the texts (`is_part`).

        Raises DataError if the work folder belongs to `prepare_part` calls with other arguments.
        """
        known, parts = _read_recorded_inputs(self.work), self.work / _PARTS
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
        """Tokenize the documents of the encoding tasks, except those in finished shards.

        Skipped files, and the number of tokens encoded by an earlier call, are reported to the
        progress callback.
        """
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
        """Read and tokenize the documents of the tasks, except those in finished shards."""
        total_bytes = sum(task.size for task in tasks)
        began, text_bytes, read_bytes = time.perf_counter(), 0, 0
        options, shards = self.options, self.shards
        tokenizer = self.tokenizer.reading(options.special_tokens, control=options.control_tokens)

        def report(documents: int, tokens: int) -> None:
            """Pass the total counts, including finished shards, to the progress callback."""
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
                    with contextlib.closing(encode_texts(texts, tokenizer)) as batches:
                        shards.write(path, reader, batches, report)
                    text_bytes += reader.text_bytes
                if shards.finished[path].is_last:
                    break
            read_bytes += task.size

    def merge(self) -> None:
        """Merge all finished shards into one folder, and add the tokenizer and the manifest.

        Raises DataError if a split has no documents.
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
        """If a split has no documents, delete the unfinished work and raise DataError."""
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
