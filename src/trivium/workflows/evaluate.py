"""Evaluating a model on files: text, probes, and the tasks that models are fine-tuned for."""

from __future__ import annotations

import itertools
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from trivium.data.sources import Source, list_sources, read_documents
from trivium.errors import DataError, TriviumError, did_you_mean
from trivium.evaluate.examples import kind_of, read_examples
from trivium.evaluate.lm_eval import run_tasks
from trivium.evaluate.perplexity import perplexity
from trivium.evaluate.probes import choose, last_words
from trivium.evaluate.records import numbered_lines
from trivium.language_model import LanguageModel, load
from trivium.models import Transformer
from trivium.train.finetune_recipe import ExamplesSection, TaskKind, TaskSection
from trivium.workflows.tasks import build_task

_RECIPE = "recipe.toml"
_PROBES = ("minimal-pairs", "choice")


@dataclass(frozen=True)
class EvaluateOptions:
    """What an evaluation may be told; a task takes what is meant for it.

    Args:
        limit: only the first so many documents or examples.
        window: tokens a model sees of a text at most; None: as many as it was trained with.
        stride: tokens a window moves on by; None: half of it.
        batch_size: rows at a time, where rows are batched.
        separator: how documents are parted in plain text, as in `trivium prepare`.
        text_field: which field of a record is the text.
        progress: told how many documents or examples are done.
        section: how a task that was taught reads its examples; None: by the usual names.
    """

    limit: int | None = None
    window: int | None = None
    stride: int | None = None
    batch_size: int = 8
    separator: str = "blank"
    text_field: str = "text"
    progress: Callable[[int], None] | None = None
    section: TaskSection | None = None


@dataclass(frozen=True)
class Evaluation:
    """What one file says of a model: numbers by name, and nested ones for groups."""

    file: str
    task: str
    metrics: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where what is not finite becomes null."""
        return {"file": self.file, "task": self.task, **_finite(self.metrics)}


Task = Callable[[LanguageModel, str, EvaluateOptions], dict[str, Any]]
"""Evaluates a model on one file (or folder of text): metrics by name, ready for JSON."""


def _perplexity(lm: LanguageModel, file: str, options: EvaluateOptions) -> dict[str, Any]:
    documents = read_documents(
        file, separator=options.separator, text_field=options.text_field, errors="strict"
    )
    found = perplexity(
        lm,
        itertools.islice((document.text for document in documents), options.limit),
        window=options.window,
        stride=options.stride,
        batch_size=options.batch_size,
        progress=options.progress,
    )
    return found.to_dict()


def _choose(kind: str) -> Task:
    def evaluate_choices(lm: LanguageModel, file: str, options: EvaluateOptions) -> dict[str, Any]:
        layout, examples = read_examples(file)
        if layout.kind != kind:
            raise DataError(f"{file}: holds {layout.kind} examples, not {kind}.")
        found = choose(lm, layout, examples[: options.limit], progress=options.progress)
        return found.to_dict()

    return evaluate_choices


def _last_words(lm: LanguageModel, file: str, options: EvaluateOptions) -> dict[str, Any]:
    lines = itertools.islice(numbered_lines(file), options.limit)
    return last_words(lm, lines, progress=options.progress).to_dict()


def _taught(kind: TaskKind) -> Task:
    def measure(lm: LanguageModel, file: str, options: EvaluateOptions) -> dict[str, Any]:
        section = options.section
        if section is None or section.kind != kind:
            section = TaskSection(kind=kind)
        labels = {"labels": lm.settings.label_kind} if kind == "classification" else {}
        taught = build_task(section.model_copy(update=labels), ExamplesSection())
        examples = taught.read([file])[: options.limit]
        taught.check(examples, lm.settings)
        found = taught.measure(lm, examples)
        return {**found.metrics.to_dict(), **found.figures}

    return measure


TASKS: dict[str, Task] = {
    "perplexity": _perplexity,
    "minimal-pairs": _choose("minimal-pairs"),
    "choice": _choose("choice"),
    "last-word": _last_words,
    **{kind: _taught(kind) for kind in get_args(TaskKind)},
}
"""What `trivium eval --task` takes: those of language models, and those that are taught."""


def evaluate(
    model: str | os.PathLike[str] | LanguageModel,
    files: Sequence[str | os.PathLike[str]],
    *,
    task: str | None = None,
    options: EvaluateOptions | None = None,
    device: str = "auto",
) -> Iterator[Evaluation]:
    """Evaluate a model on files, one result a file.

    Args:
        model: a run, a checkpoint, a saved model, a Hugging Face folder, or a loaded one.
        files: text (files, folders, globs) or examples.
        task: one of `TASKS`; None: what the model was taught, else told from each file: plain
            text and records with a text field alone are "perplexity", other records what their
            fields say.
        options: see `EvaluateOptions`.
        device: where a model that is loaded goes.

    Raises:
        DataError: a file that is missing or cannot be read.
        TriviumError: an unknown task, or one that cannot be told.
    """
    if task is not None:
        _check_task(task)
    options = options or EvaluateOptions()
    for file in files:
        # A file that is not there, or tells no task, is found before the model is loaded.
        _ = task or _told_by(file)
    lm = model if isinstance(model, LanguageModel) else load(model, device=device)
    if not isinstance(model, LanguageModel):
        window = options.window or trained_window(Path(model), lm)
        options = replace(options, window=window, section=taught_section(Path(model)))
    tasks = [(os.fspath(file), task or task_for(lm, file)) for file in files]
    for file, name in tasks:
        yield Evaluation(file, name, TASKS[name](lm, file, options))


def evaluate_with_harness(
    model: str | os.PathLike[str] | LanguageModel,
    tasks: Sequence[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    shots: int | None = None,
    limit: int | None = None,
    device: str = "auto",
) -> Iterator[Evaluation]:
    """Run tasks of lm-evaluation-harness; see `evaluate.lm_eval.run_tasks`.

    Raises:
        MissingExtraError: the harness is not installed.
        TriviumError: no such folder or task.
    """
    lm = model if isinstance(model, LanguageModel) else load(model, device=device)
    where = None if folder is None else os.fspath(folder)
    for task, metrics in run_tasks(lm, tasks, folder=where, shots=shots, limit=limit).items():
        yield Evaluation(task, "lm-eval", dict(metrics))


def task_for(lm: LanguageModel, file: str | os.PathLike[str]) -> str:
    """What a model is asked on a file: probes, its own task if it was taught one, else the file's.

    Raises as `task_of`.
    """
    told = _told_by(file)
    return told if told in _PROBES else lm.settings.taught_task or task_of(file)


def _told_by(file: str | os.PathLike[str]) -> str | None:
    path = os.fspath(file)
    sources = list_sources(path).sources
    if any(source.kind != "file" for source in sources) or not _has_records(sources):
        return "perplexity"
    return kind_of(sources[0].name) or "perplexity"


def taught_section(folder: Path) -> TaskSection | None:
    """What the recipe of a fine-tuned run says of its task; None for other folders."""
    for place in (folder, folder.parent.parent):
        try:
            tree = tomllib.loads((place / _RECIPE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return TaskSection.from_dict(tree["task"]) if "task" in tree else None
    return None


def task_of(file: str | os.PathLike[str]) -> str:
    """The task that a file is for, told from what is in it.

    Raises:
        DataError: there is no such file.
        TriviumError: its fields do not tell, or tell a task that is not evaluated here.
    """
    path, kind = os.fspath(file), _told_by(file)
    if kind in TASKS and kind not in get_args(TaskKind):
        return kind
    if kind is not None:
        raise TriviumError(
            f"{path}: holds examples for {kind}, which need a task: give one of {_known()} with "
            "--task, or ask a model without training with `trivium prompt`."
        )
    return "perplexity"


def trained_window(folder: Path, lm: LanguageModel) -> int | None:
    """Tokens a row that a run of ours was trained with, where the model's positions allow as many.

    None where no recipe is beside the model, or it reads on without a window. Positions that
    training never reached would spoil the figures.
    """
    if not isinstance(lm.module, Transformer):
        return None
    for place in (folder, folder.parent.parent):
        try:
            recipe = tomllib.loads((place / _RECIPE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        length = recipe.get("data", {}).get("length")
        if isinstance(length, int) and length > 1:
            return min(length, lm.spec.max_length or length)
    return None


def write_results(path: Path, results: Sequence[Evaluation]) -> None:
    """All results as one JSON list, written aside and renamed.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps([found.to_dict() for found in results], indent=1, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, path)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _has_records(sources: Sequence[Source]) -> bool:
    return len(sources) == 1 and sources[0].format == ".jsonl"


def _check_task(task: str) -> None:
    if task not in TASKS:
        raise TriviumError(
            f"there is no task {task!r}; known are {_known()}.{did_you_mean(task, TASKS)}"
        )


def _known() -> str:
    return ", ".join(TASKS)
