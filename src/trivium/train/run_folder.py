"""The run folder: the files of a run, and the lock that lets one process write them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trivium.errors import CheckpointError, RecipeError, TriviumError
from trivium.files import read_json, write_file, write_json
from trivium.model_folder import CHECKPOINTS, FACTS, RECIPE, SPEC, TOKENIZER, WEIGHTS

if sys.platform != "win32":
    import fcntl

_LOCK = ".lock"
# What `files.py` writes beside the place of a file or folder.
_TEMPORARY = ".*.tmp"


class RunFolder:
    """The files of one run, `runs/NAME/`.

    `recipe.toml` (complete), the files of a model folder, `shards/` (of several sources
    `shards/NAME/`), `metrics.jsonl`, `run.json` (facts for the report), `report.html`,
    `checkpoints/step-{n:08}/`; of fine-tuning `evaluation.json` and `predictions.jsonl`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.recipe = self.path / RECIPE
        self.spec = self.path / SPEC
        self.tokenizer = self.path / TOKENIZER
        self.weights = self.path / WEIGHTS
        self.shards = self.path / "shards"
        self.metrics = self.path / "metrics.jsonl"
        self.facts = self.path / FACTS
        self.report = self.path / "report.html"
        self.checkpoints = self.path / CHECKPOINTS
        self.best = self.checkpoints / "best.safetensors"
        self.training = False
        """Whether the first step was reached, so that the run is worth keeping."""
        self.kept = True
        """False after an attempt that left no trace."""

    @property
    def restarted(self) -> bool:
        """Whether `torchrun` started this process anew in a run that it began before.

        After a worker died or, of a run with --rdzv-id, as machines came or went.
        """
        lock = self.path / _LOCK
        if not self.recipe.is_file() or not lock.is_file():
            return False
        begun_by = lock.read_text(encoding="utf-8").splitlines()[1:]
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return restarts > 0 or (_torchrun_id() != "" and begun_by == [_torchrun_id()])

    @contextmanager
    def opened(self, *, resume: bool, overwrite: bool) -> Iterator[RunFolder]:
        """Lock the folder for this process, or the several of a run, of which the first calls it.

        A run that is to be replaced stays until the new one trains. An attempt that fails before
        its first step leaves no trace, except what was prepared, which --resume continues: text
        and, where it was interrupted, a tokenizer.

        Raises:
            RecipeError: another process trains here; there is a run, or something else, and it may
                not be replaced; there is no run to resume.
        """
        self._check(resume=resume, overwrite=overwrite)
        replaced = self.path.with_name(f".{self.path.name}.replaced")
        if self.recipe.is_file() and not resume:
            self._set_aside(replaced)
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with _locked(self.path):
                _remove_temporary(self.path)
                yield self
        except BaseException as error:
            prepared = any(self.path.glob("shards*"))
            if not isinstance(error, TriviumError):
                prepared = prepared or self.tokenizer.is_file()
            if not resume and not self.training and (not prepared or replaced.is_dir()):
                self.kept = False
                shutil.rmtree(self.path, ignore_errors=True)
                if replaced.is_dir():
                    replaced.rename(self.path)
            raise
        finally:
            if self.training:
                shutil.rmtree(replaced, ignore_errors=True)

    def write_facts(self, facts: dict[str, Any]) -> None:
        """Write `run.json`."""
        write_json(self.facts, facts)

    def read_facts(self) -> dict[str, Any]:
        """What `write_facts` wrote; nothing before training began."""
        facts = read_json(self.facts) if self.facts.is_file() else {}
        if not isinstance(facts, dict):
            raise CheckpointError(f"{self.facts} is no object of facts: delete it.")
        return facts

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add one line to `metrics.jsonl`."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl` up to a damaged line, as a kill leaves the last one."""
        records = []
        for line in self.metrics.read_bytes().splitlines() if self.metrics.is_file() else ():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                break
            records.append(record)
        return records

    def rewind_metrics(self, step: int) -> None:
        """Drop the records after `step`: a resumed run writes them again."""
        kept = [record for record in self.read_metrics() if record["step"] <= step]
        write_file(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))

    def _check(self, *, resume: bool, overwrite: bool) -> None:
        holds_run = self.recipe.is_file()
        if resume and not holds_run:
            raise RecipeError(f"{self.path}: there is no run to resume here (no {RECIPE}).")
        if resume:
            return
        if holds_run and not overwrite:
            what = "already holds a run: continue it"
            if not self.facts.is_file():
                what = "holds a run that stopped before its first step: start it"
            raise RecipeError(
                f"{self.path} {what} (--resume), choose another --out, or replace it (--overwrite)."
            )
        entries = self.path.iterdir() if self.path.is_dir() else ()
        others = any(one.name != _LOCK and not one.match(_TEMPORARY) for one in entries)
        if others and not holds_run:
            raise RecipeError(
                f"{self.path} is a folder with other things in it: choose another --out."
            )

    def _set_aside(self, aside: Path) -> None:
        """Move the run that is to be replaced, unless it is there: an attempt was killed."""
        with _locked(self.path):
            if aside.is_dir() and not self.checkpoints.is_dir():
                shutil.rmtree(self.path)
            else:
                shutil.rmtree(aside, ignore_errors=True)
                self.path.rename(aside)


def _remove_temporary(folder: Path) -> None:
    """Remove what processes that were killed left half-written."""
    for left in [*folder.rglob(_TEMPORARY)]:
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def _torchrun_id() -> str:
    """The --rdzv-id of `torchrun`; "" where it has none."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if name == "none" else name


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the kernel frees when the process ends in any way.

    Raises RecipeError where another process has it.
    """
    if sys.platform == "win32":
        yield
        return
    with (folder / _LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.readline().strip() or "unknown"
            raise RecipeError(
                f"{folder}: another process (id {holder}) is training "
                "this run: wait for it, stop it, or choose another --out."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n{_torchrun_id()}")
        file.flush()
        yield
