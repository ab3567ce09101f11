"""A whole run, pretraining and fine-tuning alike: data, model, training, and what is written."""

from __future__ import annotations

import contextlib
import operator
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from trivium.data.sources import missing_paths
from trivium.errors import DataError, RecipeError, TriviumError, did_you_mean
from trivium.files import write_file
from trivium.model_loading import load
from trivium.models import num_parameters
from trivium.objectives import task_kinds
from trivium.presets import presets
from trivium.spec import AnySpec
from trivium.train import defaults, hardware
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import (
    Changes,
    apply_changes,
    build_recipe,
    load_recipe,
    read_recipe,
)
from trivium.train.run_folder import RunFolder
from trivium.train.run_log import ProgressLine
from trivium.workflows.corpus import load_corpus
from trivium.workflows.model_setup import set_up_model
from trivium.workflows.training_run import TrainingRun

# What a resumed run may not change: rows, noise, weights and optimizer state follow from it.
_FIXED = (
    *("seed", "model", "tokenizer", "data", "objective", "mix", "adapter"),
    *("optimizer.kind", "train.batch_tokens", "train.batch_examples"),
)

_MIX_HAS_DATA = "this recipe names its sources in [[mix]]: leave --data out, or set mix."

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def pretrain(
    recipe: str | os.PathLike[str] | Recipe,
    *,
    data: Paths = (),
    out: str | os.PathLike[str],
    changes: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Train a model on raw text; everything it makes is in the run folder `out`.

    Args:
        recipe: a preset ("bert-small"), a shipped recipe ("textbook-bert"), a TOML file, a Recipe,
            or the folder of a model to continue from, local or Hugging Face's.
        data: files, folders or globs of text, or a folder of shards; they replace `data.paths`.
        changes: ["optimizer.lr=3e-4", ...] or a nested dict, applied to the recipe.
        resume: continue the run in `out` from its last good checkpoint; exactly, in that on a CPU
            metrics and weights are those of a run that was never interrupted, unless the budget is
            in minutes, where the clock decides the learning rate and the number of steps.
        overwrite: replace a run that `out` holds.
        console: where progress is shown; standard error unless given.

    Raises:
        TriviumError: a recipe, text, tokenizer or checkpoint that cannot be used.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    if resume:
        chosen = _resumed_recipe(RunFolder(out), changes, console, recipe)
    else:
        with _also_missing(_path_list(data)):
            chosen = load_recipe(recipe, changes)
        if data:
            if chosen.mix:
                raise RecipeError(_MIX_HAS_DATA)
            chosen = chosen.replace(data=chosen.data.replace(paths=_path_list(data)))
    return run_training(chosen, out, resume=resume, overwrite=overwrite, console=console)


def finetune(
    task: str,
    *,
    model: str | os.PathLike[str] = "",
    data: Paths = (),
    validation: float | Paths | None = None,
    out: str | os.PathLike[str],
    changes: Changes = (),
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Fine-tune a model on labelled examples; everything it makes is in the run folder `out`.

    Args:
        task: one of `objectives.task_kinds()`, such as "classification", or a recipe file.
        model: a run, a checkpoint, a Hugging Face folder or name, or a preset (new weights).
        data: labelled files; they replace `data.paths`.
        validation: a fraction of the examples, or files.
        changes: ["train.epochs=3", ...] or a nested dict, applied to the recipe.
        resume: as of `pretrain`, and so are `overwrite` and `console`.

    Raises:
        TriviumError: examples, a model or a recipe that cannot be used.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    if resume:
        chosen = _resumed_recipe(RunFolder(out), changes, console)
    else:
        from_file = task.endswith(".toml")
        if not from_file and task not in task_kinds():
            raise RecipeError(
                f'there is no task "{task}"; known are {", ".join(task_kinds())}, or a .toml file.'
                f"{did_you_mean(task, task_kinds())}"
            )
        tree: dict[str, Any] = read_recipe(task) if from_file else {"objective": {"kind": task}}
        table: dict[str, Any] = {}
        if data:
            if "mix" in tree:
                raise RecipeError(_MIX_HAS_DATA)
            table["paths"] = _path_list(data)
        fraction = isinstance(validation, float | int)
        if validation is not None:
            table["validation"] = validation if fraction else _path_list(validation)
        apply_changes(tree, {"data": table})
        if model:
            name = os.fspath(model)
            apply_changes(tree, {"model": {"preset" if name in presets else "init_from": name}})
        if not tree.get("model"):
            raise RecipeError("which model to fine-tune? Give --model RUN, FOLDER or PRESET.")
        files = (*table.get("paths", ()), *(() if fraction else table.get("validation", ())))
        with _also_missing(files):
            chosen = build_recipe(tree, changes, where=task if from_file else "recipe")
    return run_training(chosen, out, resume=resume, overwrite=overwrite, console=console)


def run_training(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Train as a recipe says; everything it makes is in the run folder `out`.

    Raises:
        TriviumError: data, a model or a checkpoint that cannot be used.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    started = time.monotonic()
    line = ProgressLine(console or Console(stderr=True))
    if not resume:
        _check_paths(recipe)
    with line.running(), RunFolder(out).opened(resume=resume, overwrite=overwrite) as run:
        hardware.keep_freed_memory()
        device = hardware.choose_device(recipe.train.device)
        origin = recipe.model.init_from
        base = None if origin is None else load(origin, device="cpu")
        spec = recipe.model.build_spec() if base is None else base.spec
        assert spec is not None
        _check_model(recipe, spec)
        write_file(run.recipe, recipe.to_toml())
        corpus = load_corpus(recipe, spec, base, run, line)
        setup = set_up_model(corpus, spec, base, device)
        TrainingRun(run, line, corpus, setup, device, started).train(resume=resume)
    return run


@contextlib.contextmanager
def _also_missing(paths: Sequence[str]) -> Iterator[None]:
    """Say with another error which paths do not exist: all that is wrong at once."""
    try:
        yield
    except TriviumError as error:
        problems = missing_paths(paths)
        if not problems:
            raise
        raise RecipeError("\n".join([str(error), *problems])) from None


def _check_paths(recipe: Recipe) -> None:
    """Refuse paths that do not exist, all at once, before anything is loaded or read."""
    problems = []
    for source in recipe.sources:
        held_out = source.validation if isinstance(source.validation, tuple) else ()
        problems += missing_paths((*source.paths, *held_out))
    if problems:
        raise DataError("\n".join(problems))


def _check_model(recipe: Recipe, spec: AnySpec) -> None:
    """Refuse a model that cannot be built, or is unsuitable for its objectives or rows.

    Before data is read.
    """
    num_parameters(spec)
    longest, length = getattr(spec, "max_length", None), defaults.row_length(recipe)
    for objective in recipe.objectives:
        objective.heads(spec, ("A", "B"))  # the true labels are in the data
        if longest is not None and length > longest and not objective.labelled:
            raise RecipeError(
                f"data.length = {length}, but this model has positions for {longest} tokens: set a "
                "shorter data.length, or take a model with relative or rotary positions."
            )


def _resumed_recipe(
    run: RunFolder,
    changes: Changes,
    console: Console | None,
    name: str | os.PathLike[str] | Recipe = "",
) -> Recipe:
    """The recipe of a run with changes, which may not touch what the run depends on."""
    if not run.recipe.is_file():
        raise RecipeError(f"{run.path}: there is no run to resume here (no recipe.toml).")
    before = build_recipe(read_recipe(run.recipe))
    if isinstance(name, str) and name in presets and name != before.model.preset:
        raise RecipeError(
            f"{run.path} is a run of {before.model.preset or before.model.init_from}, not of "
            f"{name}: leave the preset out to resume it, or choose another --out."
        )
    after = build_recipe(before.to_tree(), changes)
    for key in _FIXED:
        if operator.attrgetter(key)(before) != operator.attrgetter(key)(after):
            raise RecipeError(
                f"a resumed run cannot change {key}: what was trained so far depends on it. "
                "Start a new run with another --out."
            )
    line = ProgressLine(console or Console(stderr=True))
    for key, value in after.optimizer:
        if value != getattr(before.optimizer, key):
            line.say(
                f"resuming   with optimizer.{key} = {value}, which was "
                f"{getattr(before.optimizer, key)}",
                style="yellow",
            )
    return after


def _path_list(paths: Paths) -> tuple[str, ...]:
    several = (paths,) if isinstance(paths, str | os.PathLike) else paths
    return tuple(os.fspath(path) for path in several)
