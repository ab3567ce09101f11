"""Pretraining and fine-tuning from start to end: data, model, training and output files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from safetensors import SafetensorError

from trivium.config import flatten_keys
from trivium.data.prepare import have_texts_changed
from trivium.data.python_data import Data, PathList, resolve_data, write_data
from trivium.data.shards import Shards, are_shards, has_shards
from trivium.data.sources import check_libraries, describe_missing_paths
from trivium.errors import CheckpointError, DataError, MissingExtraError, RecipeError, TriviumError
from trivium.files import is_disk_full, write_file
from trivium.messages import translated
from trivium.model_folder import checkpoints
from trivium.models import num_parameters
from trivium.models.base_model import Spec
from trivium.objectives import task_kinds
from trivium.plan.model_size import build_sized_recipe
from trivium.presets import auto_presets, presets
from trivium.progress import ProgressLine, handle_signals
from trivium.train import defaults, hardware
from trivium.train.callback import Callback
from trivium.train.context_parallel import find_unsupported
from trivium.train.data_config import as_list
from trivium.train.distributed import Parallel, join_processes
from trivium.train.model_config import ORIGINS
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import (
    AnyRecipe,
    Changes,
    apply_changes,
    build_recipe,
    format_recipe_file,
    load_recipe_tree,
    make_paths_absolute,
    map_paths,
    open_base_model,
    parse_changes,
    read_origins,
    read_recipe,
    recipe_name,
)
from trivium.train.remote_run import UploadRun
from trivium.train.run_folder import Resume
from trivium.train.trainer import Interrupted
from trivium.workflows.corpus import load_corpus, remove_outdated_data
from trivium.workflows.evaluate import check_task
from trivium.workflows.model_setup import set_up_model
from trivium.workflows.run import Run
from trivium.workflows.training_run import RunContext, train_run

# Keys that a resumed run must not change, since rows, noise, weights, optimizer state and best
# weights depend on them. The name of a table covers all of its keys.
_FIXED = (
    *("seed", "defaults", "model", "tokenizer", "data", "objective", "mix", "adapter"),
    *("optimizer.kind", "train.batch_tokens", "train.batch_examples", "train.metric"),
)


def pretrain(
    recipe: AnyRecipe,
    *,
    data: Data = (),
    validation: float | Data | None = None,
    out: str | os.PathLike[str],
    changes: Changes = (),
    resume: Resume = False,
    overwrite: bool = False,
    suggest: bool = True,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> Run:
    """Train a model on raw text. All output is written to the run folder `out`.

    Returns the run: its folder, validation metrics and history. `out` may be a URL such as
    s3://bucket/runs/gpt: then the run works in a local folder, `run.path`, and every checkpoint is
    uploaded.

    Args:
        recipe: a preset ("bert-small"), a built-in recipe ("textbook-bert"), a TOML file, a Recipe
            or its keys as a nested dict, or a model to continue training from (a local folder or a
            Hugging Face name). Use "" to resume.
        data: paths or the data itself. Paths are files, folders or globs of text, or a folder of
            token shards; they replace `data.paths`. The data itself is a list or iterable of texts
            or dictionaries, a `datasets.Dataset` or a pandas DataFrame. It is read once and stored
            in the run folder, so that the run can be resumed, but the recipe alone cannot reproduce
            the run. A list of strings is treated as paths if all of them exist or look like paths.
        validation: the fraction of the documents to use for validation, or validation files, or the
            validation data itself.
        changes: overrides for recipe keys: ["optimizer.lr=3e-4", ...] or a nested dict.
        resume: whether to continue the run in `out` from its latest valid checkpoint. "auto"
            resumes if `out` contains a run, and otherwise starts a new run. The recipe, data and
            overrides come from the run. Other arguments must not contradict the run, unless they
            only change how the remaining steps are trained. On a CPU, metrics and weights equal
            those of an uninterrupted run. The exception is a budget in minutes, where the clock
            affects the learning rate and the number of steps.
        overwrite: whether to replace an existing run in `out`.
        suggest: whether to print, at the end, commands with which to try out the model.
        callbacks: objects with methods that are called when the run starts, logs, evaluates or
            saves.
        console: the console to print progress to; default: standard error.

    Raises:
        TriviumError: a recipe, text, tokenizer or checkpoint cannot be used.
        CheckpointError: a run with a URL is complete, but cannot be uploaded.
        Interrupted: Ctrl-C or SIGTERM stopped the run, after a checkpoint was saved.
    """
    started, threads = time.monotonic(), torch.get_num_threads()
    run = Run(out)
    resume = run.should_resume(resume)
    is_main = os.environ.get("RANK", "0") == "0"
    log = ProgressLine(console if is_main else Console(quiet=True, force_terminal=False))
    data, rows = resolve_data(data, "data")
    held_out = None
    if not isinstance(validation, float | int | None):
        validation, held_out = resolve_data(validation, "validation")
    recipe = _load_run_recipe(run, recipe, data, validation, changes, log, resume=resume)
    _check_requirements(run, recipe, resume=resume)
    if any(are_shards(source.paths) for source in recipe.sources):
        recipe = recipe.replace(tokenizer=None)  # the shards have their own
    origin = recipe.model.init_from
    if origin is not None and (origin == run.name or Path(origin).resolve() == run.path.resolve()):
        raise RecipeError(f"{origin} is the model to start from: choose another --out for the run.")
    hardware.keep_freed_memory()
    device = hardware.choose_device(recipe.train.device)
    recipe.train.uses_flex(device)  # raises an error before the data is read
    parallel = join_processes(recipe.parallel, device)
    opened, uploading = contextlib.nullcontext(), contextlib.nullcontext()
    if parallel.is_main:
        uploading = _upload_run(run, recipe, log)
        opened = run.lock(resume=resume, overwrite=overwrite)
    try:
        # SIGTERM stops a run like Ctrl-C, also before the training loop, which handles both itself.
        with handle_signals(signal.default_int_handler), log.running(), opened, uploading as upload:
            base = open_base_model(recipe)
            spec = recipe.model.build_spec() if base is None else base.lm.spec
            assert spec is not None
            _check_model(recipe, spec, device, parallel)
            _check_parallel_layout(recipe, spec, parallel)
            with parallel.main_process_first():
                if parallel.is_main:
                    if not resume and remove_outdated_data(run, recipe):
                        log.print_message("starting", "run.prepared_anew")
                    write_file(run.recipe, format_recipe_file(recipe))
                    for name, given in (("data", rows), ("validation", held_out)):
                        file = run.python_data / f"{name}.jsonl"
                        if given is not None and not (resume and file.is_file()):
                            write_data(given, file, recipe.data.text_field)
                elif not run.recipe.is_file():
                    what = "--out" if run.remote is None else "a folder TRIVIUM_CACHE"
                    raise RecipeError(
                        f"{run.path} is not what the first process sees under this name: with "
                        f"several machines choose {what} on a file system that they share."
                    )
                corpus = load_corpus(recipe, spec, base.lm if base else None, run, log)
            setup = set_up_model(corpus, spec, base, device, parallel)
            del base  # its files are closed when its weights have been copied
            context = RunContext(run, log, device, parallel, callbacks, started, upload)
            finished = train_run(context, corpus, setup, resume=resume)
            if suggest and finished is not None:
                finished.print_suggested_commands()
            parallel.barrier()
    except KeyboardInterrupt:
        if not parallel.is_main:
            raise
        raise _make_interrupted_error(run, recipe) from None
    except (OSError, SafetensorError) as error:
        if not is_disk_full(error):
            raise
        kept = "what was saved before is untouched: free some space and continue with --resume"
        nothing = "nothing is kept: free some space and start again"
        advice = kept if run.kept and run.recipe.is_file() else nothing
        raise CheckpointError(f"{run.path}: the disk is full; {advice}.") from error
    finally:
        torch.set_num_threads(threads)
    return run


def finetune(
    task: str,
    *,
    model: str | os.PathLike[str] = "",
    data: Data = (),
    validation: float | Data | None = None,
    out: str | os.PathLike[str],
    changes: Changes = (),
    resume: Resume = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> Run:
    """Fine-tune a model on labelled examples. All output is written to the run folder `out`.

    Returns the run: its folder, validation metrics and history.

    Args:
        task: one of `objectives.task_kinds()`, such as "classification", or a recipe file.
        model: a run, a checkpoint, a Hugging Face folder or name, or a preset, which is trained
            from scratch. "gpt2" is a preset, and "gpt2@main" is the model with that name on the
            Hugging Face Hub.
        data: labelled files (they replace `data.paths`), or the examples themselves, as in
            `pretrain`.
        validation: the fraction of the examples to use for validation, or validation files, or the
            validation examples themselves.
        changes: overrides for recipe keys: ["train.epochs=3", ...] or a nested dict.
        resume: as in `pretrain`.
        overwrite: as in `pretrain`.
        callbacks: as in `pretrain`.
        console: as in `pretrain`.

    Raises:
        TriviumError: examples, a model or a recipe cannot be used.
        Interrupted: Ctrl-C or SIGTERM stopped the run, after a checkpoint was saved.
    """
    tree: dict[str, Any] = {}
    if task.endswith(".toml"):
        tree = read_recipe(task)
    elif task:
        check_task(task, task_kinds())
        tree = {"objective": {"kind": task}}
    if model:
        name = os.fspath(model)
        is_preset = name in presets or name in auto_presets
        apply_changes(tree, {"model": {"preset" if is_preset else "init_from": name}})
    if not (tree.get("model") or Run(out).should_resume(resume)):
        raise RecipeError("which model to fine-tune? Give --model RUN, FOLDER or PRESET.")
    return pretrain(
        tree,
        data=data,
        validation=validation,
        out=out,
        changes=changes,
        resume=resume,
        overwrite=overwrite,
        callbacks=callbacks,
        console=console,
    )


@contextlib.contextmanager
def _upload_run(run: Run, recipe: Recipe, log: ProgressLine) -> Iterator[UploadRun | None]:
    """Context manager that uploads what is left of a run at its end, also after an error.

    Yields the callback that uploads checkpoints, or None if the run is not in object storage.
    Raises CheckpointError if a run that has ended without an error cannot be uploaded. After an
    error, a failed upload is only a warning.
    """
    remote = run.remote
    if remote is None:
        yield None
        return
    remote.keep = max(recipe.train.max_checkpoints, recipe.train.average)
    upload = UploadRun(remote, log)
    copy = f"from fsspec.generic import rsync; rsync({run.path.as_uri()!r}, {remote.url!r})"
    advice = (
        f"The complete run is in {run.path}. To upload it: `trivium pretrain --resume --out "
        f"{shlex.quote(remote.url)}` on this machine, or `python -c {shlex.quote(copy)}`."
    )
    try:
        yield upload
    except BaseException:
        # A run that replaces another run must have a checkpoint first.
        if run.is_resumable if remote.replaces else run.training:
            try:
                problem = upload.finish()
            except KeyboardInterrupt:
                problem = "the upload was interrupted"
            if problem is not None:
                log.warn(f"the run was not uploaded to {remote.url}: {problem} {advice}")
        raise
    if problem := upload.finish():
        raise CheckpointError(f"the run was not uploaded to {remote.url}: {problem} {advice}")


def _make_interrupted_error(run: Run, recipe: Recipe) -> Interrupted:
    """Return the error to raise for an interrupted run. The message says how to resume the run."""
    if not run.kept:
        back = f"; the run that was in {run.name} is still there" if run.recipe.is_file() else ""
        first = "checkpoint" if run.training else "step"
        return Interrupted(0, f"interrupted before the first {first}, nothing is kept{back}.")
    newest = next(checkpoints(run.checkpoints), None)
    step = 0 if newest is None else int(newest.name.removeprefix("step-"))
    saved = f"step {step:,} is saved" if step else "what was prepared for the first step is kept"
    command = "finetune" if recipe.labelled else "pretrain"
    resume = f"trivium {command} --resume --out {shlex.quote(run.name)}"
    return Interrupted(step, f"interrupted; {saved}. To resume:\n  {resume}")


def _load_run_recipe(
    run: Run,
    recipe: AnyRecipe,
    data: PathList,
    validation: float | PathList | None,
    overrides: Changes,
    log: ProgressLine,
    *,
    resume: bool,
) -> Recipe:
    """Load the recipe of a new or resumed run, with the given data paths and overrides applied.

    Raises RecipeError if the recipe is invalid, and DataError if a path does not exist. For a new
    run, both messages list all missing paths.
    """
    try:
        tree = load_recipe_tree(recipe) if recipe else {}
        if data and (tree.get("mix") or parse_changes(overrides).get("mix")):
            raise RecipeError(
                "this recipe names its sources in [[mix]]: leave --data out, or set mix."
            )
        if data:
            before = as_list(tree.get("data", {}).get("paths"))
            if before and not resume:
                named = ", ".join(map(str, before))
                log.print_message("data", "run.replaced_paths", named=named)
            apply_changes(tree, {"data": {"paths": data}})
        if validation is not None:
            apply_changes(tree, {"data": {"validation": validation}})
        if resume:
            return _load_resumed_recipe(run, tree, overrides, log)
        chosen = build_sized_recipe(tree, overrides, where=recipe_name(recipe), log=log)
    except TriviumError as error:
        problems = [] if resume else _find_missing_paths(data, validation)
        if not problems:
            raise
        raise RecipeError("\n".join([str(error), *problems])) from None
    problems = [
        one for each in chosen.sources for one in _find_missing_paths(each.paths, each.validation)
    ]
    if problems:
        raise DataError("\n".join(problems))
    return chosen


def _check_requirements(run: Run, recipe: Recipe, *, resume: bool) -> None:
    """Check the output folder and the required libraries before any data is read.

    A resumed run does not need the libraries for reading data, because it has its own copy of the
    data. Raises CheckpointError or MissingExtraError.
    """
    if run.path.is_file():
        raise CheckpointError(f"{run.path} is a file: choose a folder.")
    if recipe.train.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError("train.tensorboard = true", "tensorboard")
    if recipe.model.quantize is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError(f'model.quantize = "{recipe.model.quantize}"', "qlora")
    for source in () if resume else recipe.sources:
        held_out = source.validation if isinstance(source.validation, tuple) else ()
        check_libraries((*source.paths, *held_out))


def _find_missing_paths(
    data: tuple[str, ...], validation: float | tuple[str, ...] | None
) -> list[str]:
    """Return an error message for each training or validation path that does not exist."""
    return describe_missing_paths(data + (validation if isinstance(validation, tuple) else ()))


def _check_model(recipe: Recipe, spec: Spec, device: torch.device, parallel: Parallel) -> None:
    """Raise RecipeError if the model does not fit in memory or does not suit the objectives.

    The check runs before any data is read. `device` is the device to train on. With several
    processes, the host needs memory for one copy of the model, since the first process gathers and
    saves it. If every process has the whole model, it needs memory for all these copies.
    """
    if parallel.size > 1 or recipe.model.quantize is not None:
        device = torch.device("cpu")
    is_single = all(one.builds_single_model for one in recipe.objectives)
    is_whole = recipe.parallel.data == "ddp" or not is_single
    num_copies = parallel.local_size if is_whole else 1
    needed, free = 4 * num_parameters(spec) * num_copies, hardware.available_memory(device)
    if needed > free:
        raise RecipeError(
            f"the weights of this model alone take {needed / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free on {device}: choose a smaller preset. `trivium plan` "
            "says which GPUs suffice for it."
        )
    if spec.counts and (parallel.size > 1 or recipe.train.budget not in (None, ("epochs", 1.0))):
        raise RecipeError(
            "an n-gram model of counts reads its text once, in one process: leave the budget "
            "(train.steps, minutes, tokens, epochs) out and start it without torchrun."
        )
    lengths = [phase.data.length or 0 for phase in recipe.phases if phase.data]
    longest = getattr(spec, "max_length", None)
    length = max([defaults.row_length(recipe), *lengths])
    by_layer = recipe.optimizer.layer_decay < 1.0 or recipe.train.gradual_unfreezing is not None
    for objective in recipe.objectives:
        objective.heads(spec, ("A", "B"))  # placeholders: the data is not read yet
        if by_layer and not objective.builds_single_model:
            raise RecipeError(
                f'objective.kind = "{objective.kind}" trains two models at once, whose layers are '
                "not one above the other: leave optimizer.layer_decay and "
                "train.gradual_unfreezing out."
            )
        if longest is not None and length > longest and not objective.labelled:
            raise RecipeError(
                f"data.length = {length}, but this model has positions for {longest} tokens: set a "
                "shorter data.length, or take a model with relative or rotary positions."
            )


def _check_parallel_layout(recipe: Recipe, spec: Spec, parallel: Parallel) -> None:
    """Raise RecipeError if model or objective does not support the recipe's parallel layout.

    The check runs before any data is prepared. Only RNNs can combine stateful training with
    activation checkpointing, because their blocks are not recomputed.
    """
    if recipe.model.quantize is not None and parallel.size > 1:
        raise RecipeError(
            f'model.quantize = "{recipe.model.quantize}" trains in one process, and there are '
            f"{parallel.size}: leave it out, or start the run without torchrun."
        )
    if recipe.parallel.context > 1 and (names := find_unsupported(spec, recipe.objectives)):
        raise RecipeError(
            f"parallel.context = {recipe.parallel.context} does not support {', '.join(names)}: "
            "leave parallel.context out."
        )
    for objective in recipe.objectives:
        if objective.carries_state and recipe.parallel.activation_checkpointing and spec.stacks:
            raise RecipeError(
                "objective.carry_state = true and parallel.activation_checkpointing = true: "
                "blocks that are computed twice would extend their state twice; leave one out."
            )
        if not objective.tensor_parallel and recipe.parallel.tensor > 1:
            raise RecipeError(
                f'objective.kind = "{objective.kind}" needs the logits of single tokens, which '
                "processes that share the vocabulary do not have: leave parallel.tensor out."
            )


def _load_resumed_recipe(
    run: Run, tree: dict[str, Any], overrides: Changes, log: ProgressLine
) -> Recipe:
    """Load the recipe of a resumed run, with the given overrides applied.

    Raises RecipeError if an argument, an override or an edit of the run's recipe.toml changes a key
    that completed steps depend on.

    Args:
        run: the run that is resumed.
        tree: the recipe keys that come from the arguments, such as the preset, task or data.
        overrides: overrides for recipe keys, from `--set`.
        log: the progress line, for messages about changed keys.
    """
    try:
        before = build_recipe(read_recipe(run.recipe), where=str(run.recipe))
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}\n{run.name} started from this model, which --resume reads again: put it back."
        ) from None
    if tree.get("data", {}).get("paths") == []:  # from a Recipe without data
        del tree["data"]["paths"]
    tree, overrides = make_paths_absolute(tree), make_paths_absolute(parse_changes(overrides))
    after, edited = load_recipe_tree(before), before.to_tree()
    # Keys that the user edited in recipe.toml. Files may have moved; their contents are compared.
    trained = run.read_metadata().get("recipe", edited)
    if "tokenizer" not in trained:  # the run uses the tokenizer of its shards
        edited.pop("tokenizer", None)
    edits = [*_iter_differences(_mask_paths(trained), _mask_paths(edited))]
    for origin in set(ORIGINS) & tree.get("model", {}).keys():
        # Checked before the recipes are merged: keys of one model may not be valid for another.
        if tree["model"][origin] != after["model"].get(origin):
            was = before.model.preset or before.model.init_from or "a spec of its own"
            _reject_change(run, "model", was, tree["model"][origin])
    if before.objective is not None and "kind" in tree.get("objective", {}):
        was, kind = before.objective.kind, tree["objective"]["kind"]
        if kind != was:
            _reject_change(run, "objective", was, kind)
    apply_changes(after, tree)
    recipe = build_recipe(after, overrides)
    if run.metadata_file.is_file() and next(checkpoints(run.checkpoints), None) is None:
        where = run.checkpoints
        log.print_message("resuming", "run.resumed_from_start", where=where)
    _reject_changed_texts(run, before, recipe)
    both = (_mask_paths(one.to_tree()) for one in (before, recipe))
    for key, old, new in (*edits, *_iter_differences(*both)):
        if any(f"{key}.".startswith(f"{fixed}.") for fixed in _FIXED):
            _reject_change(run, key, old, new)
        if key.startswith(("optimizer.", "schedule.")):
            log.warn(f"resuming with {key} = {new}, which was {old}")
        elif new is not None:  # None: the old budget, replaced by another kind of budget
            old = translated("run.unset") if old is None else old
            log.print_message("resuming", "run.changed_key", key=key, new=new, old=old)
    changed = dict.fromkeys(flatten_keys(parse_changes(overrides)), "--set")
    recipe._origins = read_origins(run.recipe.read_text(encoding="utf-8")) | changed
    return recipe


def _reject_changed_texts(run: Run, before: Recipe, after: Recipe) -> None:
    """Raise RecipeError if the text differs from the text that the run has encoded.

    If a file was moved, it counts as unchanged if its size and modification time are the same.
    Labelled files and token shards are checked later, not here.
    """
    for old, new in zip(before.sources, after.sources):
        shards, held_out = run.shards / new.name, new.validation or 0.0
        is_other = (old.paths, old.validation) != (new.paths, new.validation)
        if is_other and has_shards(shards):
            is_missing = describe_missing_paths(new.paths) != []
            if is_missing or have_texts_changed(Shards.open(shards), new.paths, held_out):
                _reject_change(run, "data.paths", list(old.paths), list(new.paths))


def _mask_paths(tree: Any) -> Any:
    """Return a recipe (a nested dict) with every path replaced with a placeholder."""
    return map_paths(tree, lambda _: "a path")


def _reject_change(run: Run, key: str, old: Any, new: Any) -> NoReturn:
    """Raise RecipeError, saying that a resumed run cannot change `key` from `old` to `new`."""
    raise RecipeError(
        f"a resumed run cannot change {key}: {run.name} has {old}, not {new}, and what was made "
        "so far depends on it. Leave it out, or start a new run with another --out."
    )


def _iter_differences(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) for each key whose value differs.

    The value of an unset key is None.
    """
    old, new = flatten_keys(before), flatten_keys(after)
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            yield key, old.get(key), new.get(key)
