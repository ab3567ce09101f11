"""The run folder: the files of a run, and a lock so that only one process writes them."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, TextIO

from trivium import files, model_folder
from trivium.data.prepare import partial_folder
from trivium.errors import CheckpointError, RecipeError
from trivium.interop.settings import FILES
from trivium.progress import handle_signals
from trivium.remote import cache_path, is_remote
from trivium.train.remote_run import RUN_ID, RemoteRun

_LOCK = ".lock"
# The pattern of the temporary names that `files.py` uses while it writes a file or folder.
_TEMPORARY = ".*.tmp"


Resume = bool | Literal["auto"]
"""Whether to resume a run. "auto": resume if a run reached its first step, else start a new run."""


class RunFolder:
    """The files of one run, `runs/NAME/`.

    - the complete recipe (`recipe.toml`) and the files of a model folder
    - `shards/`, or `shards/NAME/` with several sources, and `texts/` (with `data.keep_text`)
    - `examples/`: labelled examples that are not in the cache
    - `data/`: data that was passed from Python
    - `metrics.jsonl`, `run.json` (metadata for the report) and `report.html`
    - `samples.jsonl`: outputs of the model at every evaluation (with `train.samples`)
    - `checkpoints/step-{n:08}/`
    - `evaluation.json` and `predictions.jsonl` (fine-tuning)

    Args:
        path: the folder, or a URL in object storage. With a URL, the run works in a local folder in
            the cache, which is uploaded (see `remote_run.py`).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.remote: RemoteRun | None = None
        """The copy of the run in object storage, if the path is a URL."""
        if is_remote(path):
            url = os.fspath(path).rstrip("/")
            self.path = cache_path("run", url) / url.rpartition("/")[2]
            self.remote = RemoteRun(url, self.path)
        self.name = str(self.path) if self.remote is None else self.remote.url
        """The path or URL with which commands find the run."""
        self.recipe = self.path / model_folder.RECIPE
        self.spec = self.path / model_folder.SPEC
        self.tokenizer = self.path / model_folder.TOKENIZER
        self.source_tokenizer = self.path / model_folder.SOURCE_TOKENIZER
        self.model_files = [self.spec, self.tokenizer, self.source_tokenizer]
        self.model_files += map(self.path.joinpath, FILES)
        """The files of a model folder, except for the weights."""
        self.standard_input = self.path / "standard_input.txt"
        self.python_data = self.path / "data"
        self.weights = self.path / model_folder.WEIGHTS
        self.shards = self.path / "shards"
        self.texts = self.path / "texts"
        self.examples = self.path / "examples"
        self.metrics_file = self.path / "metrics.jsonl"
        self.samples_file = self.path / "samples.jsonl"
        self.metadata_file = self.path / model_folder.RUN_METADATA
        self.report = self.path / "report.html"
        self.checkpoints = self.path / model_folder.CHECKPOINTS
        self.training = False
        """Whether the run has reached its first step. If it fails later, its files are kept."""
        self.kept = True
        """Whether the files of the run still exist. False once a failed start was cleaned up."""

    def should_resume(self, resume: Resume) -> bool:
        """Return whether to resume the run in this folder instead of starting a new one.

        Processes that `torchrun` restarts always resume their run. `torchrun` restarts processes if
        one of them dies and, with --rdzv-id, if machines join or leave. A run in object storage
        is downloaded if it may be resumed. Raises RecipeError if `resume` is True and there is no
        run to resume.
        """
        if resume and self.remote is not None:
            self.remote.download()
        if resume is True and not self.recipe.is_file():
            raise RecipeError(
                f"{self.name}: there is no run to resume here (no {model_folder.RECIPE})."
                f"{self._describe_replaced_run()}{files.did_you_mean_folder(self.path)}"
            )
        return resume is True or (resume == "auto" and self.has_begun) or self._is_restarted

    @property
    def _is_restarted(self) -> bool:
        """Whether `torchrun` restarted this process or launched the run again (same --rdzv-id)."""
        lock = self.path / _LOCK
        if not self.recipe.is_file() or not lock.is_file():
            return False
        begun_by = lock.read_text(encoding="utf-8").splitlines()[1:]
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return restarts > 0 or (_get_rendezvous_id() != "" and begun_by == [_get_rendezvous_id()])

    @property
    def has_begun(self) -> bool:
        """Whether the folder contains a run that reached its first step."""
        return self.recipe.is_file() and (self.metadata_file.is_file() or self.checkpoints.is_dir())

    @property
    def is_resumable(self) -> bool:
        """Whether the run can be resumed: its folder contains a checkpoint or a finished model."""
        checkpoint = next(model_folder.checkpoints(self.checkpoints), None)
        return checkpoint is not None or self.weights.is_file()

    @contextmanager
    def lock(self, *, resume: bool, overwrite: bool) -> Iterator[RunFolder]:
        """Context manager that locks the folder. Only the main process of a run uses it.

        Nothing is deleted or written before the folder is locked. With `overwrite`, the old run is
        moved to another folder, and deleted once the new run has a checkpoint. If the new run ends
        without a checkpoint, or is killed, the old run is restored. If a run fails before its first
        step, its files are deleted. Only encoded text and its tokenizer are kept, for reuse when
        the run is started again.

        Raises:
            RecipeError: another process trains in this folder, or the folder or its copy in object
                storage contains a run or other files that may not be replaced.
        """
        if self.remote is not None and not resume:
            self.remote.check_unused(overwrite=overwrite)
        if self._replaced_folder.is_dir() and not (
            self.is_resumable or (resume and self.has_begun)
        ):
            with self._acquire_lock() as lock:
                if overwrite or lock.read() != "":  # else the user made the folder
                    self.remove_preparation()
                self._restore_replaced_run()
            if not overwrite or self._replaced_folder.is_dir():
                where = self._describe_replaced_run() or " The run is back as it was."
                raise RecipeError(
                    f"{self.path}: a start with --overwrite was killed before its first checkpoint."
                    f"{where} Continue that run (--resume), choose another --out, or replace it "
                    "(--overwrite)."
                )
        if overwrite and not resume and self.recipe.is_file():
            with self._acquire_lock():
                shutil.rmtree(self._replaced_folder, ignore_errors=True)
                self.path.rename(self._replaced_folder)
        with self._acquire_lock() as lock:
            was_used = lock.read() != ""  # a run has used this folder
            try:
                if not resume:
                    self._check_unused(was_used=was_used)
                lock.truncate(0)
                lock.write(f"{os.getpid()}\n{_get_rendezvous_id()}")
                lock.flush()
                for left in [*self.path.rglob(_TEMPORARY)]:  # left by killed processes
                    shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
                with nullcontext() if resume else self._clean_up_failed_start():
                    yield self
            finally:
                with handle_signals(_ignore_signal):
                    if resume and not was_used:
                        lock.truncate(0)  # the user made the folder: no later start may use it
                    self._delete_or_restore_replaced_run()

    @contextmanager
    def _clean_up_failed_start(self) -> Iterator[None]:
        """Context manager that deletes the run's files if the block fails before the first step.

        The files are kept if the text has already been encoded. A run that replaces another run is
        different: its files are deleted on any failure before its first checkpoint.
        """
        try:
            yield
        except BaseException:
            is_encoded = any(self.path.glob("shards*"))
            replaces = self._replaced_folder.is_dir()
            if not (self.is_resumable if replaces else self.training or is_encoded):
                self.kept = False
                with handle_signals(_ignore_signal):
                    self.remove_preparation()
            raise

    def remove_preparation(self) -> None:
        """Delete only those files that a run writes before its first checkpoint."""
        stdin = self.standard_input, self.standard_input.with_suffix(".jsonl")
        texts = *stdin, self.python_data, self.texts, self.examples
        shards = self.shards, partial_folder(self.shards)
        logs = self.metrics_file, self.samples_file, self.metadata_file, self.path / "tensorboard"
        others = (self.path / "vocab.txt", *(() if self.is_resumable else (self.checkpoints,)))
        for entry in (self.recipe, *self.model_files, *texts, *shards, *logs, *others):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)

    def best_weights_path(self, step: int) -> Path:
        """Return the folder of the best weights that were saved after a step."""
        return self.checkpoints / f"best-{step:08}"

    def delete_best_weights_except(self, *steps: int) -> None:
        """Delete all saved best weights except those of the given steps."""
        kept = {self.best_weights_path(step) for step in steps}
        for folder in self.checkpoints.glob("best-*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def write_metadata(self, metadata: dict[str, Any]) -> None:
        """Write the metadata of the run to `run.json`.

        A run in object storage also gets a random name, so that its copies can be recognized.
        """
        if self.remote is not None:
            name = self.read_metadata().get(RUN_ID) or secrets.token_hex(8)
            metadata = {**metadata, RUN_ID: name}
        files.write_json(self.metadata_file, metadata)

    def read_metadata(self) -> dict[str, Any]:
        """Read the metadata of the run from `run.json`. Returns {} before training begins.

        Raises CheckpointError if the file does not contain a JSON object.
        """
        metadata = files.read_json(self.metadata_file) if self.metadata_file.is_file() else {}
        if not isinstance(metadata, dict):
            raise CheckpointError(f"{self.metadata_file} is not a JSON object: delete it.")
        return metadata

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append a record to `metrics.jsonl`, without values that are not finite."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(_format_record(record))

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the records of `metrics.jsonl`, up to the first invalid record."""
        records = files.read_json_lines(self.metrics_file)
        return [*itertools.takewhile(lambda one: isinstance(one.get("step"), int), records)]

    def rewind_metrics(self, step: int) -> None:
        """Delete all records of later steps than `step`, since a resumed run writes them again."""
        kept = [record for record in self.read_metrics() if record["step"] <= step]
        files.write_file(self.metrics_file, "".join(map(_format_record, kept)))

    def append_samples(self, record: dict[str, Any]) -> None:
        """Append a record to `samples.jsonl`: a step, and the outputs of the model at this step."""
        with self.samples_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(files.nan_to_none(record), ensure_ascii=False) + "\n")

    def rewind_samples(self, step: int) -> None:
        """Delete the samples of later steps than `step`. Without a file, nothing happens."""
        if self.samples_file.is_file():
            records = files.read_json_lines(self.samples_file)
            self.samples_file.unlink()
            for record in records:
                if record.get("step", 0) <= step:
                    self.append_samples(record)

    @contextmanager
    def _acquire_lock(self) -> Iterator[TextIO]:
        """Context manager that acquires the lock of the folder. Yields the lock file.

        The lock file contains the id of the process that trains in this folder. Raises RecipeError
        if another process has the lock.
        """
        file = self.path / _LOCK
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(files.file_lock(file))
            except BlockingIOError:
                holder = [*file.read_text(encoding="utf-8").splitlines(), "unknown"][0]
                raise RecipeError(
                    f"{self.name}: another process (id {holder}) is training this run: wait for "
                    "it, stop it, or choose another --out."
                ) from None
            lock.seek(0)
            yield lock

    def _check_unused(self, *, was_used: bool) -> None:
        """Raise RecipeError if the folder contains a run, or files that are not from a run.

        A run that stopped before its first step may be overwritten. `was_used` says whether the
        lock file shows that a run was started in this folder. If not, the user wrote the recipe in
        this folder, and the recipe is protected like a run.
        """
        if self.has_begun or (self.recipe.is_file() and not was_used):
            raise RecipeError(
                f"{self.name} already holds a run: continue it (--resume), choose another --out, "
                "or replace it (--overwrite)."
            )
        others = any(one.name != _LOCK and not one.match(_TEMPORARY) for one in self.path.iterdir())
        if others and not self.recipe.is_file():
            raise RecipeError(
                f"{self.path} is a folder with other things in it: choose another --out."
            )

    @property
    def _replaced_folder(self) -> Path:
        """The folder that stores the replaced run until the new run has a checkpoint."""
        return self.path.with_name(f".{self.path.name}.replaced")

    def _describe_replaced_run(self) -> str:
        """Return a sentence that tells the user where the replaced run is, or "" if there is none.

        The sentence is part of error messages.
        """
        if not self._replaced_folder.is_dir():
            return ""
        return (
            " The run that a start with --overwrite was to replace is in "
            f"{self._replaced_folder}: rename it to {self.path}."
        )

    def _delete_or_restore_replaced_run(self) -> None:
        """Delete the replaced run if the new run has a checkpoint.

        Otherwise, restore the replaced run, unless the new run left a recipe in the folder.
        """
        if self.is_resumable:
            shutil.rmtree(self._replaced_folder, ignore_errors=True)
        elif not self.recipe.is_file():
            self._restore_replaced_run()

    def _restore_replaced_run(self) -> None:
        """Rename the folder of the replaced run back, if the folder of the new run is empty."""
        (self.path / _LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or another process begins
            self.path.rmdir()
            self._replaced_folder.rename(self.path)


def _ignore_signal(signum: int, frame: Any) -> None:
    """Signal handler that does nothing, so that the cleanup can finish."""


def _format_record(record: dict[str, Any]) -> str:
    """Format a metrics record as one line of JSON, without values that are not finite."""
    known = {name: value for name, value in files.nan_to_none(record).items() if value is not None}
    return json.dumps(known, allow_nan=False) + "\n"


def _get_rendezvous_id() -> str:
    """Return the --rdzv-id of `torchrun`, or "" if it is not set."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if name == "none" else name
