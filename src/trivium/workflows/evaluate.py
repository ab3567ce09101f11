"""Model evaluation: task metrics on labelled files, or perplexity on text."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trivium.adapt.quantize import Quantization
from trivium.data.documents import ReadOptions, describe_text_columns, read_documents
from trivium.data.records import BadRecords, ReadReport, RecordOptions
from trivium.data.sources import Paths, list_paths
from trivium.errors import DataError, RecipeError, TriviumError, did_you_mean
from trivium.evaluate.perplexity import perplexity
from trivium.inference.text_model import TASK_OF_CAPABILITY
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.model_folder import CHECKPOINTS, RECIPE
from trivium.model_loading import load
from trivium.objectives import LabelledObjective, Metrics, task_kinds
from trivium.remote_model import find_local_path
from trivium.train.data_config import as_list
from trivium.train.recipe_loading import Changes, check_sections, parse_changes, read_recipe
from trivium.workflows.text_options import TextOptions

PERPLEXITY = "perplexity"
Model = str | os.PathLike[str] | LanguageModel


_TEXT = TextOptions()


def list_evaluation_tasks() -> tuple[str, ...]:
    """Return the tasks that `evaluate` supports: perplexity and every fine-tuning task."""
    return (PERPLEXITY, *task_kinds())


def evaluate(
    model: Model,
    data: Paths,
    *,
    task: str | None = None,
    limit: int | None = None,
    text: TextOptions = _TEXT,
    changes: Changes = (),
    device: str = "auto",
    quantize: Quantization | None = None,
    progress: Callable[[int], None] | None = None,
) -> Metrics:
    """Evaluate a model on files, and return the metrics of its task or its perplexity.

    For some tasks, the result also contains misclassified examples.

    Args:
        model: a run, a checkpoint, a saved model, a Hugging Face folder or name, or a
            `LanguageModel`.
        data: files, folders or globs with text, or with labelled examples in the format of the
            task.
        task: one of `list_evaluation_tasks()`; default: the task that the model was fine-tuned for,
            or perplexity if there is none.
        limit: the maximum number of documents or examples to read; None for all.
        text: options for perplexity; `errors` and `encoding` also apply to labelled examples.
        changes: overrides for recipe keys, such as ["objective.text_field=review"]. Allowed are the
            keys of the task's objective, and the keys of `[data]` that affect how files are read.
            Keys of `[data]` take precedence over `text`.
        device: the device to load the model to. Ignored for a `LanguageModel`.
        quantize: the quantization to load the model with. Ignored for a `LanguageModel`.
        progress: a function that is called with the number of tokens scored so far (perplexity
            only).

    Raises:
        DataError: a file is missing or cannot be read.
        TriviumError: the task is unknown, an option belongs to another task, or the model does not
            support the task.
    """
    if task is not None:
        check_task(task, list_evaluation_tasks())
    lm = model
    if not isinstance(lm, LanguageModel):
        lm = load(lm, device=device, quantize=quantize)
    recipe = {} if isinstance(model, LanguageModel) else read_run_recipe(find_local_path(model))
    task = task or infer_task(lm)
    names = list_paths(data)
    changes, read_keys = split_data_overrides(changes)
    bad = BadRecords() if read_keys.pop("bad_records", "stop") == "skip" else None
    text = dataclasses.replace(text, **read_keys)
    seen = _note_training_overlap(names, recipe)
    if task == PERPLEXITY and changes:
        raise TriviumError("objective.KEY changes how labelled examples are read, not perplexity.")
    if task != PERPLEXITY and dataclasses.replace(text, errors="strict", encoding="utf-8") != _TEXT:
        raise TriviumError(
            "window, stride, batch_size, separator and text_field are for perplexity, and this is "
            f"{task}: leave them out; columns are chosen with --set objective.KEY=NAME."
        )
    if task == PERPLEXITY:
        documents = read_documents(names, text)
        result = perplexity(
            lm,
            itertools.islice((document.text for document in documents), limit),
            window=text.window,
            stride=text.stride,
            batch_size=text.batch_size,
            progress=progress,
        )
        note = english("note.windows", window=result.window, stride=result.stride)
        notes = (english("note.whole_texts") if result.window is None else note, *seen)
        notes = (*describe_text_columns(names, text), *notes)
        if result.num_ends:
            notes += (english("note.loss_with_ends"),)
        if result.pseudo:
            notes += (english("note.masked_one_by_one"),)
        return Metrics(result.to_dict(), notes=notes)
    capability = next((name for name, of in TASK_OF_CAPABILITY.items() if of == task), None)
    if capability is not None:
        lm.require(capability)
    objective = build_task_objective(lm, task, recipe, changes)
    objective.check_metric_libraries()
    report = ReadReport()
    records = RecordOptions(errors=text.errors, encoding=text.encoding, bad=bad, report=report)
    examples = list(itertools.islice(objective.read(names, records), limit))
    if not examples:
        problems = () if bad is None else bad.lines
        raise DataError("\n".join(problems) or f"{', '.join(names)}: no examples to evaluate.")
    metrics = objective.evaluate(lm, examples)
    skipped = () if bad is None else bad.describe_skipped(len(examples))
    return dataclasses.replace(metrics, notes=(*report.lines, *skipped, *metrics.notes, *seen))


def split_data_overrides(overrides: Changes) -> tuple[Changes, dict[str, Any]]:
    """Separate overrides of the `[data]` section from all other overrides.

    Returns a pair: the other overrides as a nested dict, and the `[data]` keys as a dict. Raises
    RecipeError for keys of `[data]` that do not affect how files are read.
    """
    tree = parse_changes(overrides)
    read_keys = tree.pop("data", {})
    known = [*(field.name for field in dataclasses.fields(ReadOptions)), "bad_records"]
    for key in read_keys:
        if key not in known:
            raise RecipeError(
                f"data.{key} is not used here, where nothing is trained. The keys of data that are "
                f"used: {', '.join(known)}."
            )
    if read_keys.get("bad_records", "stop") not in ("stop", "skip"):
        raise RecipeError(
            f'data.bad_records is "stop" or "skip", not {read_keys["bad_records"]!r}.'
        )
    return tree, read_keys


def check_task(task: str, tasks: Sequence[str]) -> None:
    """Raise RecipeError if `task` is not one of the known `tasks`."""
    if task not in tasks:
        known = ", ".join(tasks)
        raise RecipeError(
            f'there is no task "{task}"; known are {known}.{did_you_mean(task, tasks)}'
        )


def _note_training_overlap(paths: Sequence[str], recipe: dict[str, Any]) -> tuple[str, ...]:
    """Return a note if the model was trained on one of the evaluated paths.

    The result is a tuple with one note, or an empty tuple. Paths that the run used for validation
    are not reported. `recipe` is the recipe of the run.
    """
    tables = (recipe.get("data", {}), *recipe.get("mix", []))
    trained, validation = (_expand_recipe_paths(tables, key) for key in ("paths", "validation"))
    known = [
        path for path in paths if _is_path_in(path, trained) and not _is_path_in(path, validation)
    ]
    if not known:
        return ()
    return (english("note.trained_on_it", paths=", ".join(known)),)


def _expand_recipe_paths(tables: Sequence[dict[str, Any]], key: str) -> list[str]:
    """Return the existing files and folders listed under a key in any of the recipe tables.

    `key` is "paths" or "validation". Globs are expanded.
    """
    listed = [as_list(table.get(key)) for table in tables]
    patterns = [path for paths in listed if isinstance(paths, list) for path in map(str, paths)]
    return [path for pattern in patterns for path in glob.glob(pattern, recursive=True)]


def _is_path_in(path: str, paths: Sequence[str]) -> bool:
    """Return whether `path` is one of `paths`, a link to one of them, or inside one of them.

    `paths` may contain files and folders.
    """
    whole = Path(os.path.realpath(path))
    return any(
        whole.is_relative_to(os.path.realpath(known_path))
        or (os.path.isfile(path) and os.path.samefile(path, known_path))
        for known_path in paths
    )


def infer_task(lm: LanguageModel) -> str:
    """Return the task for which a model should be evaluated.

    This is the task in the model's settings, or else a task that fits its capabilities. If there is
    neither, the result is "perplexity".
    """
    if lm.settings.task in LabelledObjective.kinds:
        return str(lm.settings.task)
    tasks = (task for name, task in TASK_OF_CAPABILITY.items() if name in lm.capabilities)
    return next(tasks, PERPLEXITY)


def build_task_objective(
    lm: LanguageModel, task: str, recipe: dict[str, Any], overrides: Changes = ()
) -> LabelledObjective:
    """Build the objective that evaluates a model on a task.

    The keys of the objective come from three places. Overrides take precedence over the recipe of
    the run, and the recipe takes precedence over the settings of the model. Raises RecipeError if
    an override is not a key of the objective.
    """
    trees = [source.get("objective", {}) for source in (recipe, *recipe.get("mix", []))]
    tree = next((tree for tree in trees if tree.get("kind") == task), {})
    fields = LabelledObjective.kinds[task].model_fields
    options = {k: v for k, v in lm.settings.task_options(task).items() if k in fields}
    return make_objective(task, options | tree, overrides)


def make_objective(task: str, keys: dict[str, Any], overrides: Changes) -> LabelledObjective:
    """Build the objective of a task from its keys and from overrides such as "objective.KEY=VALUE".

    Raises RecipeError if an override is not a key of the objective.
    """
    changed = parse_changes(overrides)
    others = [name for name in changed if name != "objective"]
    if others:
        raise RecipeError(f"{others[0]} is not read here; write objective.KEY=VALUE.")
    own = changed.get("objective", {})
    objective = LabelledObjective.kinds[task].from_tree({"kind": task, **keys, **own}, where=task)
    assert isinstance(objective, LabelledObjective)
    return objective


def read_run_recipe(path: Path) -> dict[str, Any]:
    """Return the recipe of a run as a nested dict.

    Returns an empty dict if `path` is neither a run nor a checkpoint. Raises RecipeError if the
    recipe cannot be read.
    """
    file = (path.parent.parent if path.parent.name == CHECKPOINTS else path) / RECIPE
    if not file.is_file():
        return {}
    recipe = read_recipe(file)
    check_sections(recipe, str(file))
    return recipe
