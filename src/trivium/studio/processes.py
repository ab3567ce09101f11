"""The studio's folder, and the processes that train in it.

One run trains at a time. Its process holds a file lock as long as it lives: the lock file is opened
and locked here, and the process inherits the open file. The lock therefore outlives a studio that
is closed or killed, and the kernel releases it when the run ends for any reason. A restarted studio
reads the name of the run and the id of its process from the lock file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trivium.data.samples import copy_samples
from trivium.errors import TriviumError
from trivium.files import file_lock, read_json_lines
from trivium.messages import Language, english, translate_english
from trivium.studio.goals import GOALS, Choices, check_run_name
from trivium.train.run_folder import RunFolder

Status = Literal["new", "preparing", "training", "finished", "stopped", "failed", "killed"]
"""The status of a run. "killed": its process ended without a message. "new": nothing is there."""

_TIMEOUT = 600.0  # seconds for a check or a forecast
_TAIL = 100_000  # bytes at the end of a log in which its last messages are searched
_ACTIVE = ("preparing", "training")


@dataclass(frozen=True)
class RunState:
    """The state of a run at one moment, as read from its files.

    Args:
        name: the name of the run folder.
        status: what the run does, or how it ended.
        error: the error message of a failed run.
        log: the end of the output of its process; "" for a run that was started elsewhere.
        commands: the commands that were started for this run, the last one at the end.
        recipe: the text of `recipe.toml`.
        records: the records of `metrics.jsonl`.
        samples: the records of `samples.jsonl`.
        metadata: the content of `run.json`.
        can_resume: whether `--resume` can continue the run.
    """

    name: str
    status: Status
    error: str
    log: str
    commands: tuple[str, ...]
    recipe: str
    records: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    metadata: dict[str, Any]
    can_resume: bool

    @property
    def is_active(self) -> bool:
        """Whether the process of the run is alive."""
        return self.status in _ACTIVE

    @property
    def has_model(self) -> bool:
        """Whether the run has finished and its model can be used."""
        return self.status == "finished"

    def list_warnings(self, language: Language) -> list[str]:
        """Return the warnings in the records of the run, with the step of each."""
        return [
            f"{one['step']:,}: {translate_english(str(one['warning']), language)}"
            for one in self.records
            if "warning" in one
        ]

    @property
    def task(self) -> str | None:
        """The task of a fine-tuned run; None for pretraining."""
        return self.metadata.get("task")


class StudioFolder:
    """The files of a studio, and the one process that trains in it.

    - `runs/NAME/`: run folders
    - `logs/NAME.log`: the commands of a run and the output of its processes
    - `uploads/`: uploaded files
    - `samples/`: the bundled texts, once a run uses one
    - `exported/NAME/`: exported models

    Commands run inside the folder, so that their paths are short.

    Args:
        path: the folder. It is created if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()
        self.runs, self.logs = self.path / "runs", self.path / "logs"
        self.uploads, self.exported = self.path / "uploads", self.path / "exported"
        self._lock_file = self.path / ".training.lock"
        self._lock = threading.Lock()  # one thread at a time starts, stops or asks
        self._process: subprocess.Popen[bytes] | None = None
        if self.path.exists() and not self.path.is_dir():
            raise TriviumError(f"{path} is a file: name a folder for the studio.")
        for folder in (self.runs, self.logs, self.uploads):
            folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Context manager that keeps a second studio from using the folder at the same time.

        Raises TriviumError if another studio uses the folder, or if the system has no file locks.
        """
        if sys.platform == "win32":
            raise TriviumError("trivium studio needs Linux or macOS; on Windows, use WSL.")
        lock = self.path / ".studio.lock"
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(file_lock(lock))
            except BlockingIOError:
                raise TriviumError(
                    f"{self.path}: another studio (process {lock.read_text('utf-8').strip()}) uses "
                    "this folder: open its page, stop it, or name another folder."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def list_runs(self) -> list[str]:
        """Return the names of all runs, those started or changed last first."""
        logs = {file.stem: file.stat().st_mtime for file in self.logs.glob("*.log")}
        folders = {file.parent.name: file.stat().st_mtime for file in self.runs.glob("*/run.json")}
        times = {name: max(logs.get(name, 0), folders.get(name, 0)) for name in logs | folders}
        return sorted(times, key=lambda name: -times[name])

    def find_training_run(self) -> str | None:
        """Return the name of the run whose process is alive, or None."""
        with self._lock:
            return self._find_process()[0]

    def start(self, name: str, arguments: Sequence[str], language: Language = "en") -> None:
        """Start `trivium` with these arguments for the run `name`, in a process of its own.

        Args:
            name: the name of the run. It must not exist yet.
            arguments: the arguments of a command that trains.
            language: the language of the log.

        Raises:
            TriviumError: the name cannot be used, or another run is training.
        """
        name = check_run_name(name)
        if (self.runs / name).exists() or self._log_file(name).exists():
            raise TriviumError(english("reason.studio_name_taken", name=name))
        self._launch(name, arguments, language)

    def resume(self, name: str, minutes: float | None = None, language: Language = "en") -> None:
        """Continue a run from its last checkpoint.

        Args:
            name: the name of the run.
            minutes: the new budget of the whole run in minutes; None keeps the budget.
            language: the language of the log.

        Raises:
            TriviumError: the run has nothing to continue from, or another run is training.
        """
        state = self.read_state(name)
        if not state.can_resume:
            raise TriviumError(english("reason.studio_no_checkpoint", name=name))
        command = "finetune" if state.task else "pretrain"
        changes = [] if minutes is None else ["--set", f"train.minutes={minutes:g}"]
        arguments = [command, "--resume", "--out", f"runs/{name}", *changes]
        self._launch(name, arguments, language)

    def stop(self, name: str) -> None:
        """Ask the process of a run to save a checkpoint and end. Does nothing if it has ended."""
        with self._lock:
            running, process = self._find_process()
            if running == name and process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)

    def read_state(self, name: str) -> RunState:
        """Return what the files of the run `name` say now. Damaged files count as empty."""
        name = check_run_name(name)
        run, log = RunFolder(self.runs / name), self._read_log(name)
        metadata: dict[str, Any] = {}
        with contextlib.suppress(TriviumError, OSError):
            metadata = run.read_metadata()
        records = run.read_metrics()
        last = log.rpartition("\n$ ")[2]  # the output of the last command
        error = last.rpartition("\nerror: ")[2].strip() if "\nerror: " in last else ""
        is_training = self.find_training_run() == name
        if is_training:
            status = "training" if records else "preparing"
        elif metadata.get("finished"):
            status = "finished"
        elif error:
            status = "failed"
        elif "\ninterrupted" in last:
            status = "stopped"
        else:
            status = "killed" if log or run.has_begun else "new"
        recipe = run.recipe.read_text("utf-8", "replace") if run.recipe.is_file() else ""
        return RunState(
            name=name,
            status=status,
            error=error if status == "failed" else "",
            log=log,
            commands=tuple(line[2:] for line in log.splitlines() if line.startswith("$ ")),
            recipe=recipe,
            records=records,
            samples=read_json_lines(run.samples_file),
            metadata=metadata,
            can_resume=not is_training and run.is_resumable,
        )

    def list_files(self, name: str) -> list[Path]:
        """Return the files of a run whose change changes its state. Some may not exist."""
        run = RunFolder(self.runs / check_run_name(name))
        files = [run.metrics_file, run.samples_file, run.metadata_file, run.recipe, run.weights]
        return [*files, self._log_file(name)]

    def list_bases(self, family: str | None) -> list[str]:
        """Return the folders of finished pretrained runs with an architecture, relative to `path`.

        `family` is "encoder-only" or "decoder-only"; for None, the list is empty.
        """
        found = []
        for name in self.list_runs() if family else ():
            run = RunFolder(self.runs / name)
            with contextlib.suppress(TriviumError, OSError, ValueError):
                metadata = run.read_metadata()
                spec = json.loads(run.spec.read_text("utf-8"))
                stacks = [stack for stack in ("encoder", "decoder") if spec.get(stack)]
                if metadata.get("finished") and not metadata.get("task") and run.weights.is_file():
                    found += [f"runs/{name}"] if f"{'-'.join(stacks)}-only" == family else []
        return found

    def find_data(self, text: str) -> str:
        """Return a path that the user typed, as an absolute path. `hf:NAME` is returned unchanged.

        Raises TriviumError if there is no such file or folder.
        """
        text = text.strip()
        if text.startswith("hf:"):
            return text
        path = Path(text).expanduser().resolve()
        if not text or not (path.exists() or any(path.parent.glob(path.name))):
            raise TriviumError(english("reason.studio_no_file", path=text))
        return str(path)

    def get_sample(self, name: str) -> str:
        """Return the path of a bundled file, relative to `path`. Unpacks the files if needed."""
        assert any(name in goal.samples for goal in GOALS.values()), name
        if not (self.path / "samples" / name).is_file():
            copy_samples(self.path / "samples")
        return f"samples/{name}"

    def shorten_path(self, path: str) -> str:
        """Return a path inside the studio's folder relative to it, and any other path unchanged."""
        inside = Path(path).resolve()
        return str(inside.relative_to(self.path)) if inside.is_relative_to(self.path) else path

    def run_json(self, arguments: Sequence[str]) -> Any:
        """Run a `trivium` command and return the JSON that it prints.

        Raises TriviumError with the message of the command if it fails or takes too long.
        """
        done = self._run(arguments)
        return json.loads(done.stdout.splitlines()[-1])

    def measure(self, choices: Choices) -> dict[str, Any]:
        """Prepare a run and measure its first step in a process of its own.

        Returns what `measure_run` returns. Raises TriviumError if the run cannot start.
        """
        with tempfile.TemporaryDirectory(prefix=".forecast-", dir=self.path) as out:
            arguments = [json.dumps(choices.build_measurement(f"{out}/run"))]
            done = self._run(arguments, "trivium.studio.measure")
        return json.loads(done.stdout.splitlines()[-1])

    def export(self, name: str, kind: Literal["hf", "gguf"]) -> str:
        """Export the model of a finished run with `trivium export`.

        Returns what the command prints. Raises TriviumError with its message if it fails.
        """
        return self._run(self.build_export(name, kind)).stdout

    def build_export(self, name: str, kind: Literal["hf", "gguf"]) -> list[str]:
        """Return the arguments of `trivium export` for a run."""
        out = f"exported/{check_run_name(name)}-{kind}"
        return ["export", f"runs/{name}", out, "--format", kind, "--overwrite"]

    def _run(
        self, arguments: Sequence[str], module: str = "trivium"
    ) -> subprocess.CompletedProcess[str]:
        """Run a `trivium` command to its end in the studio's folder, and return its output."""
        try:
            done = subprocess.run(
                _command(arguments, module),
                cwd=self.path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_TIMEOUT,
                env=_environment("en"),
            )
        except subprocess.TimeoutExpired:
            raise TriviumError(english("reason.studio_timeout", seconds=_TIMEOUT)) from None
        if done.returncode:
            message = done.stderr.rpartition("error: ")[2].strip() or f"exit code {done.returncode}"
            raise TriviumError(message)
        return done

    def _launch(self, name: str, arguments: Sequence[str], language: Language) -> None:
        """Start a process that holds the lock of the studio's folder until it ends.

        Raises TriviumError if a process holds the lock already.
        """
        with self._lock, contextlib.ExitStack() as stack:
            running, _ = self._find_process()
            try:
                lock = stack.enter_context(file_lock(self._lock_file))
            except BlockingIOError:
                name = running or "another run"
                raise TriviumError(english("reason.studio_busy", name=name)) from None
            lock.truncate(0)
            with self._log_file(name).open("a", encoding="utf-8") as log:
                log.write(f"\n$ {format_command(arguments)}\n")
                log.flush()
                self._process = subprocess.Popen(
                    _command(arguments),
                    cwd=self.path,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=_environment(language),
                    start_new_session=True,  # Ctrl-C in the studio's terminal does not stop it
                    pass_fds=[lock.fileno()],
                )
            lock.write(f"{self._process.pid} {name}")
            lock.flush()

    def _find_process(self) -> tuple[str | None, int | None]:
        """Return the name and the process id of the run that holds the lock, or (None, None)."""
        if self._process is not None:
            self._process.poll()  # collects the exit code of a process that has ended
        try:
            with file_lock(self._lock_file):
                return None, None
        except BlockingIOError:
            process, _, name = self._lock_file.read_text("utf-8").partition(" ")
            return (name, int(process)) if process.isdigit() else (None, None)

    def _log_file(self, name: str) -> Path:
        """Return the path of the log of a run."""
        return self.logs / f"{name}.log"

    def _read_log(self, name: str) -> str:
        """Return the end of the log of a run; "" if there is no log."""
        file = self._log_file(name)
        if not file.is_file():
            return ""
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _TAIL))
            return log.read().decode("utf-8", "replace")


def format_command(arguments: Sequence[str]) -> str:
    """Return a command line for a terminal.

    >>> format_command(["pretrain", "llama-tiny", "--data", "my text.txt"])
    "trivium pretrain llama-tiny --data 'my text.txt'"
    """
    return shlex.join(["trivium", *arguments])


def _command(arguments: Sequence[str], module: str = "trivium") -> list[str]:
    """Return the command that runs a module with the interpreter of this process."""
    return [sys.executable, "-P", "-m", module, *arguments]


def _environment(language: Language) -> dict[str, str]:
    """Return the environment of a child process, with the language of its output."""
    return {**os.environ, "TRIVIUM_LANGUAGE": language, "PYTHONUNBUFFERED": "1"}
