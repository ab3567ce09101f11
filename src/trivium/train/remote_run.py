"""The copy of a run in object storage: the run works in a local folder, which is uploaded.

A run with `--out s3://bucket/runs/gpt` writes all of its files to a local folder in the cache.
After every checkpoint, a background thread uploads the files that have changed. The marker of a
folder (`checksums.json` of a checkpoint, `manifest.json` of shards) is uploaded after the other
files of the folder, and deleted before they are replaced or deleted. A checkpoint without its
marker is incomplete, and is never used.

A record next to the local folder (`.NAME.uploaded.json`) contains the size and modification time of
every file that was uploaded or downloaded. A file that matches the record is not uploaded again. A
file that is in the record, but no longer in the local folder, is deleted from the copy.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from trivium.data.shards import MANIFEST
from trivium.errors import CheckpointError, DataError, RecipeError, TriviumError
from trivium.files import file_lock, read_json, replace_folder, write_json
from trivium.language_model import LanguageModel
from trivium.messages import translated
from trivium.model_folder import CHECKPOINTS, CHECKSUMS, RECIPE, RUN_METADATA, find_damage
from trivium.progress import ProgressLine
from trivium.remote import RemoteFile, RemoteFolder
from trivium.train.callback import Callback
from trivium.train.loader import GlobalBatch

RUN_ID = "run_id"
"""The key of `run.json` that contains a random name, which only copies of the same run share."""
_MARKERS = (CHECKSUMS, MANIFEST)
_STEP = re.compile(rf"{CHECKPOINTS}/(step-[0-9]{{8}})/.+")


class RemoteRun:
    """The copy of a run folder in object storage.

    Args:
        url: the URL of the copy.
        folder: the local run folder.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.remote, self.folder = RemoteFolder(url), folder
        self._record_file = folder.with_name(f".{folder.name}.uploaded.json")
        self.replaces = False
        """Whether the first upload of a checkpoint replaces another run (`--overwrite`)."""
        self.keep = sys.maxsize
        """The number of checkpoints to keep."""
        self.cancelled = False
        """Whether to stop the upload after the current file."""
        self._is_claimed = False

    @property
    def url(self) -> str:
        """The URL of the copy."""
        return self.remote.url

    def check_unused(self, *, overwrite: bool) -> None:
        """Raise RecipeError if a new run must not be written to the URL.

        With `overwrite`, a run at the URL will be replaced when the new run has a checkpoint. Other
        files are never replaced.
        """
        files = self.remote.list_files()
        if files and RECIPE not in files:
            raise RecipeError(
                f"{self.url} is a folder with other things in it: choose another --out."
            )
        if RUN_METADATA in files and not overwrite:
            raise RecipeError(
                f"{self.url} already holds a run: continue it (--resume), choose another --out, or "
                "replace it (--overwrite)."
            )
        self.replaces = RUN_METADATA in files

    def download(self) -> None:
        """Download the run, unless the local folder is at least as new as the copy.

        All files except checkpoints are downloaded, and the newest complete checkpoint whose
        checksums are correct. With `train.average`, as many checkpoints as are averaged are
        downloaded. A damaged checkpoint is skipped with a warning. Does nothing if there is no run
        at the URL.

        Raises:
            CheckpointError: all checkpoints at the URL are damaged.
            DataError: the storage cannot be read.
            RecipeError: the local folder contains another run than the URL.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with _wait_for_lock(self.folder.with_name(f".{self.folder.name}.download.lock")):
            files = self.remote.list_files()
            if RECIPE not in files or RUN_METADATA not in files:
                return
            steps = _find_complete_steps(files)
            local = self._list_local_steps() if self._has_begun else []
            if self._has_begun:
                self._check_same_run(files)
                if not steps or (local and local[0] >= steps[0]):
                    return
            recipe = self.folder / RECIPE
            recipe.unlink(missing_ok=True)  # downloaded last: an interrupted download is repeated
            recipe_text = self.remote.read(RECIPE).decode()
            count = tomllib.loads(recipe_text).get("train", {}).get("average", 1)
            good = 0
            for step in steps:
                if good < count:
                    good += step in local or self._download_checkpoint(step, files)
            if steps and not good:
                raise CheckpointError(
                    f"{self.url} cannot be resumed: all of its checkpoints are damaged. Start "
                    "again with --overwrite, which replaces the run, or choose another --out."
                )
            record = self._read_record()
            for name in sorted(files, key=lambda one: one == RECIPE):
                if not _STEP.fullmatch(name):
                    self.remote.download(name, self.folder / name)
                    record[name] = _describe(self.folder / name)
            write_json(self._record_file, record)

    def upload(self) -> None:
        """Upload all files that have changed, and delete those that the run has deleted.

        Raises:
            DataError: the storage cannot be written.
            RecipeError: another run has been started at the URL in the meantime.
        """
        there = self.remote.list_files()
        if not self._is_claimed:
            there = self._claim(there)
        record, local = self._read_record(), self._list_local_files()
        try:
            for names in _group_by_folder(local):
                with suppress(FileNotFoundError):  # a checkpoint that was deleted in the meantime
                    self._upload_files(names, local, there, record)
            self._delete_old_files(there, record)
        finally:
            write_json(self._record_file, record)

    @property
    def _has_begun(self) -> bool:
        """Whether the local folder contains a run that reached its first step."""
        return (self.folder / RECIPE).is_file() and (self.folder / RUN_METADATA).is_file()

    def _check_same_run(self, files: dict[str, RemoteFile]) -> None:
        """Raise RecipeError if the local folder contains another run than the URL."""
        there = self._read_remote_id(files)
        if there not in (None, read_json(self.folder / RUN_METADATA).get(RUN_ID)):
            raise RecipeError(
                f"{self.url} holds another run than its local copy, {self.folder}. Delete the "
                "local copy to continue the run in object storage, or choose another --out."
            )

    def _read_remote_id(self, files: dict[str, RemoteFile]) -> str | None:
        """Return the name of the run at the URL; None if there is no run or it has no name."""
        if RUN_METADATA not in files:
            return None
        try:
            return json.loads(self.remote.read(RUN_METADATA)).get(RUN_ID)
        except (ValueError, AttributeError):
            raise DataError(f"{self.url}/{RUN_METADATA} is damaged.") from None

    def _download_checkpoint(self, step: str, files: dict[str, RemoteFile]) -> bool:
        """Download a checkpoint. Returns whether its checksums are correct, and warns if not."""
        prefix, target = f"{CHECKPOINTS}/{step}/", self.folder / CHECKPOINTS / step
        names = [name.removeprefix(prefix) for name in files if name.startswith(prefix)]
        try:
            with replace_folder(target) as temporary:
                for name in names:
                    self.remote.download(prefix + name, temporary / name)
                if problem := find_damage(temporary, ["*"], required=()):
                    raise _DamagedError(problem)
        except _DamagedError as error:
            warnings.warn(
                f"{self.url}/{prefix[:-1]}: {error}; using the checkpoint before it.", stacklevel=2
            )
            return False
        record = self._read_record()
        record |= {prefix + name: _describe(target / name) for name in names}
        write_json(self._record_file, record)
        return True

    def _claim(self, there: dict[str, RemoteFile]) -> dict[str, RemoteFile]:
        """Check before the first upload that the URL is free or holds this run.

        A run that is to be replaced is deleted. Returns the files that are left at the URL.
        """
        if self.replaces:
            self.remote.delete(sorted(there, key=_is_not_marker))
            self.replaces, there = False, {}
        own = read_json(self.folder / RUN_METADATA).get(RUN_ID)
        if self._read_remote_id(there) not in (None, own):
            raise RecipeError(f"another run has been started at {self.url} in the meantime.")
        self._is_claimed = True
        return there

    def _upload_files(
        self,
        names: list[str],
        local: dict[str, Path],
        there: dict[str, RemoteFile],
        record: dict[str, list[int]],
    ) -> None:
        """Upload those files of one folder that have changed, the marker last.

        If the marker has changed, the old marker is deleted first, since the files that the marker
        describes are about to be replaced.
        """
        changed = []
        for name in names:
            description = _describe(local[name])
            known = name in there and there[name].size == description[0]
            if not known or record.get(name) != description:
                changed.append(name)
        self.remote.delete([one for one in changed if one in there and not _is_not_marker(one)])
        for name in sorted(changed, key=lambda one: (not _is_not_marker(one), one)):
            if self.cancelled:
                raise DataError("the upload was interrupted")
            description = _describe(local[name])
            self.remote.upload(local[name], name)
            record[name] = description
            there[name] = RemoteFile(*description)

    def _delete_old_files(self, there: dict[str, RemoteFile], record: dict[str, list[int]]) -> None:
        """Delete files that the run has deleted, and all but the newest checkpoints."""
        local = self._list_local_files()
        kept = {*self._list_local_steps(), *_find_complete_steps(there)[: self.keep]}
        gone = []
        for name in there:
            step = _STEP.fullmatch(name)
            if name not in local and (step[1] not in kept if step else name in record):
                gone.append(name)
        self.remote.delete(sorted(gone, key=_is_not_marker))
        for name in {*gone, *record} - local.keys():
            record.pop(name, None)

    def _list_local_files(self) -> dict[str, Path]:
        """Return the files of the local folder by name, except hidden files and folders."""
        files = {}
        for folder, subfolders, names in os.walk(self.folder, followlinks=True):
            subfolders[:] = sorted(one for one in subfolders if not one.startswith("."))
            for name in names:
                if not name.startswith("."):
                    path = Path(folder, name)
                    files[path.relative_to(self.folder).as_posix()] = path
        return files

    def _list_local_steps(self) -> list[str]:
        """Return the names of the local checkpoints, newest first."""
        folder = self.folder / CHECKPOINTS
        found = (one.name for one in folder.glob("step-*")) if folder.is_dir() else ()
        return sorted(
            (one for one in found if _STEP.fullmatch(f"{CHECKPOINTS}/{one}/.")), reverse=True
        )

    def _read_record(self) -> dict[str, list[int]]:
        """Return the record of uploaded files; empty if there is none or it is damaged."""
        with suppress(DataError):
            record = read_json(self._record_file)
            if isinstance(record, dict):
                return record
        return {}


class UploadRun(Callback):
    """A callback that uploads a run after every checkpoint, in the background.

    If an upload fails, training continues. There is one warning, and the next checkpoint tries
    again.

    Args:
        run: the copy of the run.
        log: the progress line.
    """

    def __init__(self, run: RemoteRun, log: ProgressLine) -> None:
        self.run, self.log = run, log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._upload: Future[None] | None = None
        self._awaited: Path | None = None
        self._has_warned = False

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Upload the files that describe the run, unless they would replace another run."""
        if not self.run.replaces:
            self._start_upload()

    def on_save(self, folder: Path) -> None:
        """Upload the checkpoint as soon as it is complete."""
        self._awaited = folder
        self._upload_if_saved()

    def on_step(self, step: int, progress: float) -> None:
        """Upload a checkpoint that has been completed. Warns if an upload has failed."""
        self._upload_if_saved()
        if self._upload is not None and self._upload.done():
            problem = self._upload.exception()
            if problem is None:
                self._has_warned = False
            elif not self._has_warned:
                self._has_warned = True
                self.log.warn(
                    f"the run was not uploaded to {self.run.url}; the next checkpoint tries again. "
                    f"{problem}"
                )
            self._upload = None

    def finish(self) -> TriviumError | None:
        """Upload what is left of the run, and wait for it. Returns the error if this fails.

        Ctrl-C ends the upload after the current file, and raises KeyboardInterrupt.
        """
        self.log.update(translated("progress.uploading", url=self.run.url))
        try:
            self._thread.submit(self.run.upload).result()
        except TriviumError as error:
            return error
        finally:
            self.run.cancelled = True
            self._thread.shutdown(wait=False, cancel_futures=True)
        return None

    def _upload_if_saved(self) -> None:
        """Start an upload if a checkpoint was awaited and is complete.

        Several processes complete a checkpoint in the background.
        """
        if self._awaited is not None and self._awaited.is_dir():
            self._awaited = None
            self._start_upload()

    def _start_upload(self) -> None:
        """Start an upload in the background, after the upload that is running."""
        self._upload = self._thread.submit(self.run.upload)


class _DamagedError(Exception):
    """A downloaded checkpoint does not match its checksums."""


@contextmanager
def _wait_for_lock(file: Path) -> Iterator[None]:
    """Context manager that holds the lock `file`. It waits while another process holds the lock."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(file_lock(file))
                break
            except BlockingIOError:
                time.sleep(0.2)
        yield


def _find_complete_steps(files: dict[str, RemoteFile]) -> list[str]:
    """Return the names of the checkpoints that have a marker, newest first."""
    marked = (_STEP.fullmatch(name) for name in files if name.endswith(f"/{CHECKSUMS}"))
    return sorted({match[1] for match in marked if match}, reverse=True)


def _group_by_folder(names: dict[str, Path]) -> list[list[str]]:
    """Group file names by folder: first the run folder, last the checkpoints, newest first."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(name.rpartition("/")[0], []).append(name)
    steps = sorted((one for one in groups if one.startswith(f"{CHECKPOINTS}/")), reverse=True)
    return [names for folder, names in groups.items() if folder not in steps] + [
        groups[folder] for folder in steps
    ]


def _is_not_marker(name: str) -> bool:
    """Return whether a file is not the marker of its folder."""
    return name.rpartition("/")[2] not in _MARKERS


def _describe(file: Path) -> list[int]:
    """Return the size of a local file in bytes and its modification time in ns."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns]
