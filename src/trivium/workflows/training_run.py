"""One training run, from its recipe and data to the finished model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from trivium.data.encoded import EncodedExamples
from trivium.data.shards import TRAIN, VALIDATION
from trivium.errors import RecipeError
from trivium.files import write_file
from trivium.messages import translated
from trivium.model_folder import checkpoints, write_without_weights
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.preference import ReferenceObjective
from trivium.plan.forecast import print_forecast
from trivium.progress import ProgressLine
from trivium.train import defaults, hardware
from trivium.train.callback import Callback
from trivium.train.carried_state import create_carried_state
from trivium.train.checkpoint import Checkpoints, SaveCheckpoints
from trivium.train.distributed import Parallel, parallelize_step
from trivium.train.kept_weights import KeptWeights, delete_stale_best_weights
from trivium.train.loader import BatchStream, LoaderPhase
from trivium.train.memory import MemoryUse, StoreMicroBatchSize, fit_memory, reuse_micro_batch_size
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import format_recipe_file
from trivium.train.remote_run import UploadRun
from trivium.train.rollout import RolloutLoader
from trivium.train.run_folder import RunFolder
from trivium.train.run_warnings import RunHistory, RunWarnings
from trivium.train.starting_weights import PartsStartingWeights, StartingWeights
from trivium.train.terminal_log import TerminalLog
from trivium.train.trackers import MetricsFile, TensorBoard
from trivium.train.trainer import Trainer, TrainState, TrainStep
from trivium.train.unfreezing import GradualUnfreezing
from trivium.train.whole_model import WholeModel
from trivium.workflows.corpus import Corpus
from trivium.workflows.finished_run import FinishedRun, ValidationMetrics
from trivium.workflows.introduction import (
    make_metadata,
    print_budget_used_up,
    print_introduction,
    print_num_steps,
    print_phases,
)
from trivium.workflows.model_setup import ModelSetup
from trivium.workflows.run_evaluation import RunEvaluation
from trivium.workflows.streams import build_phases, build_streams, compute_probabilities


@dataclass(frozen=True)
class RunContext:
    """The folder, output, device and processes of a run.

    Args:
        run: the run folder.
        log: the progress line, which prints only on rank 0.
        device: the device of this process.
        parallel: the processes of the run.
        callbacks: the user's callbacks.
        started: the value of `time.monotonic` when the command started.
        upload: the callback that uploads a run in object storage; only on rank 0.
    """

    run: RunFolder
    log: ProgressLine
    device: torch.device
    parallel: Parallel
    callbacks: Sequence[Callback]
    started: float
    upload: UploadRun | None = None


def train_run(
    context: RunContext, corpus: Corpus, setup: ModelSetup, *, resume: bool
) -> FinishedRun | None:
    """Train until the budget is used up, and write all files of the run.

    Returns the finished run on rank 0, and None on the other ranks.
    """
    run, log, device, parallel = context.run, context.log, context.device, context.parallel
    module, lm, before = setup.module, setup.lm, run.read_metadata()
    num_examples = sum(one.num_train for one in corpus.example_sources)
    recipe = defaults.complete(setup.recipe, lm.spec, num_examples=num_examples)
    arithmetic = _choose_precision_and_threads(context, recipe, module, before)
    precision = arithmetic.precision
    batches = _build_batches(context, recipe, corpus, setup)
    memory = fit_memory(
        reuse_micro_batch_size(recipe, before, parallel) if resume else recipe,
        module,
        [stream for phase in batches.phases for stream in phase.streams],
        parallel,
        precision=precision,
        device=device,
    )
    if memory.idle:
        log.warn(memory.idle)
    _enable_fast_kernels(context, recipe, module)
    is_sharded = parallel.size > 1 and memory.data == "fsdp"
    if is_sharded:
        _check_sharding_support(recipe)
    models_to_save = recipe.objectives[0].models_to_save
    model = WholeModel(module, lm, models_to_save, parallel, device, is_sharded=is_sharded)
    train_step = parallelize_step(
        TrainStep(module),
        parallel,
        recipe.parallel.replace(data=memory.data),
        precision=precision,
        device=device,
        has_unused=len(recipe.objectives) > 1 or lm.spec.has_optional_weights,
        weights=setup.weights,
    )
    with torch.autocast(device.type, precision, enabled=precision is not torch.float32):
        _prepare_references(context, model, batches, setup.weights)
    setup.weights = None  # and with them the weights of the base model
    validation = ValidationMetrics(corpus, recipe, precision, model)
    validation.set_eval_limit(before.get("eval_limit"))
    optimizers = recipe.optimizer.build(module, precision)
    unfrozen = recipe.train.gradual_unfreezing
    carried = create_carried_state(module, batches.phases[-1].streams[0])
    saved = Checkpoints(
        run.checkpoints,
        parallel,
        carried=carried,
        files=run.model_files,
        keep=max(recipe.train.max_checkpoints, recipe.train.average),
    )
    machine = {
        "device": hardware.describe_device(device),
        "precision": hardware.precision_name(precision),
        "threads": torch.get_num_threads(),
        "processes": parallel.size,
        "micro_batch_tokens": memory.micro_batch_tokens,
        "torch": torch.__version__,
    }
    state = TrainState()
    if resume and next(checkpoints(run.checkpoints), None) is not None:
        _check_data_unchanged(context, corpus, before, verify=recipe.train.verify)
        state = saved.restore(module, optimizers, log.warn, verify=recipe.train.verify)
        _print_resumed_step(context, state, machine, before)
        delete_stale_best_weights(run, state, log, parallel)
    parallel.barrier()  # all processes have read run.json, which rank 0 overwrites now
    metadata: dict[str, Any] = {}
    if parallel.is_main:
        metadata = make_metadata(recipe, corpus, setup, batches.probabilities, validation) | machine
        metadata["gflops"] = dict(arithmetic.gflops)
        metadata["peak_flops"] = hardware.peak_flops(device, precision)
        _write_run_files(context, recipe, corpus, setup, metadata, state)
    metric = metadata.get("metric", "") if validation.sources else None
    kept = KeptWeights(run, recipe, model, saved, state, metric)
    reads_model = bool(context.callbacks)
    trainer = Trainer(
        recipe,
        train_step,
        RolloutLoader(
            batches.phases[-1].streams,
            list(batches.probabilities.values()),
            seed=recipe.seed,
            micro_batch_tokens=memory.micro_batch_tokens,
            parallel=parallel,
            earlier=batches.phases[:-1],
            continues=batches.phases[-1].continues,
            model=model,
            precision=precision,
        ),
        optimizers,
        device,
        precision,
        context.started,
        parallel,
        carried=carried,
        unfreezing=None if unfrozen is None else GradualUnfreezing(module, unfrozen),
        measure=RunEvaluation(log, validation, batches.validation, kept, reads_model),
        lm=lm,
        checkpoints=run.checkpoints,
    )
    if state.step == 0:
        _print_steps_and_forecast(context, trainer, memory)
    run.training = True
    save = SaveCheckpoints(saved, module, optimizers, state, log, waits=reads_model)
    trainer.callbacks = [save]
    is_finished = resume and trainer.progress(state) >= 1.0
    if is_finished:
        print_budget_used_up(log, recipe, state)
    if parallel.is_main:
        table = TerminalLog(log, recipe.train, metadata, lambda: kept.metric, not is_finished)
        trainer.callbacks = _build_callbacks(context, trainer, metadata, save, kept, table)
    trainer.train(state)
    parallel.barrier()  # the last checkpoint is complete
    for optimizer in optimizers:
        optimizer.state.clear()
    finished = FinishedRun(run, log, recipe, corpus, kept, validation)
    finished.evaluate_and_write(state)
    return finished if parallel.is_main else None


@dataclass(frozen=True)
class _Batches:
    """The training and validation batches of a run.

    Args:
        phases: the training phases, each with its batch streams.
        validation: the batch streams of the data sources that have validation data.
        probabilities: the sampling probability of each data source in the last phase, by source
            name.
    """

    phases: Sequence[LoaderPhase]
    validation: Sequence[BatchStream]
    probabilities: Mapping[str, float]


def _choose_precision_and_threads(
    context: RunContext, recipe: Recipe, module: nn.Module, metadata: Mapping[str, Any]
) -> hardware.Arithmetic:
    """Choose the precision of a run, and choose and set the number of PyTorch threads.

    All processes must call this function. They all get the same precision. `metadata` is that of
    the resumed run, or empty for a new run.
    """
    device = context.device
    arithmetic = hardware.choose_precision(recipe.train.precision, device, module, metadata)
    known = list(hardware.PRECISIONS.values())  # if GPUs differ, use one that all support
    [index] = context.parallel.all_reduce_max(known.index(arithmetic.precision))
    # Norm weights intentionally stay in float32 when activations are bfloat16 (Gemma 2, Qwen3).
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    torch.set_num_threads(arithmetic.threads)
    return replace(arithmetic, precision=known[int(index)])


def _build_batches(
    context: RunContext, recipe: Recipe, corpus: Corpus, setup: ModelSetup
) -> _Batches:
    """Build the training and validation batches of all data sources.

    If no example is truncated, this also adapts the model's maximum length to the longest example.
    """
    streams, validation = (
        build_streams(recipe, corpus, setup, split, context.run.examples, context.parallel)
        for split in (TRAIN, VALIDATION)
    )
    validation = [one for one in validation if not one.objective.rolls_out]
    corpus.free_examples()
    lengths = [one.longest for one in (*streams, *validation) if one.objective.labelled]
    setup.fit_context_length(corpus, max(lengths, default=0))
    phases = build_phases(recipe, streams, corpus, setup)
    return _Batches(phases, validation, compute_probabilities(recipe, phases[-1].streams))


def _prepare_references(
    context: RunContext,
    model: WholeModel,
    batches: _Batches,
    weights: StartingWeights | PartsStartingWeights | None,
) -> None:
    """Prepare the reference models of a run, or compute what the losses need of them.

    This happens before the first step, and before a checkpoint is loaded, so that the reference is
    the model at the start of the run. All processes must call this function. `weights` are the
    starting weights; None if reference models have been copied with their weights.
    """
    streams = [*batches.phases[-1].streams, *batches.validation]

    def show_progress(share: float) -> None:
        """Show which part of the references is computed."""
        context.log.update_or_log(translated("progress.reference", share=share))

    for stream in streams:
        if isinstance(stream.objective, PolicyGradient) and stream.objective.reference is not None:
            assert not isinstance(weights, PartsStartingWeights)  # those of ELECTRA
            model.add_frozen(stream.objective.reference, weights)
        if isinstance(stream.objective, ReferenceObjective):
            assert isinstance(stream.data, EncodedExamples)
            show_progress(0.0)
            stream.objective.add_references(stream.data, model.lm, model.map, show_progress)


def _enable_fast_kernels(context: RunContext, recipe: Recipe, module: Any) -> None:
    """Enable FlexAttention and torch.compile in the model's blocks, if the recipe uses them."""
    if recipe.train.uses_flex(context.device) and (warning := module.use_flex_attention()):
        context.log.warn(warning)
    if recipe.train.compiles(context.device):
        module.compile_blocks()


def _print_steps_and_forecast(context: RunContext, trainer: Trainer, memory: MemoryUse) -> None:
    """Print the number of steps, the phases and the speed forecast of a new run.

    The forecast is also stored in the run metadata.
    """
    print_num_steps(context.log, trainer, trainer.lm.spec)
    print_phases(context.log, trainer)
    metadata = context.run.read_metadata() if context.parallel.is_main else {}
    metadata |= print_forecast(trainer, memory, metadata, context.log)
    if context.parallel.is_main:
        context.run.write_metadata(metadata)


def _build_callbacks(
    context: RunContext,
    trainer: Trainer,
    metadata: Mapping[str, Any],
    save: SaveCheckpoints,
    kept: KeptWeights,
    table: TerminalLog,
) -> list[Callback]:
    """Return all callbacks for rank 0, in the order in which they are called."""
    run, log, recipe = context.run, context.log, trainer.recipe
    patience = max(one.advice().steps_to_beat_unigram for one in recipe.objectives)
    history = RunHistory(recipe.objectives[0], metadata.get("unigram_loss"), patience)
    return [
        StoreMicroBatchSize(run, log, trainer.loader),
        RunWarnings(run, history),
        MetricsFile(run),
        *([TensorBoard(run.path / "tensorboard")] if recipe.train.tensorboard else []),
        save,
        kept,
        *context.callbacks,
        table,
        *([] if context.upload is None else [context.upload]),
    ]


def _check_sharding_support(recipe: Recipe) -> None:
    """Raise RecipeError if the optimizer does not support sharded weights."""
    if not recipe.optimizer.supports_sharding:
        raise RecipeError(
            f'optimizer.kind = "{recipe.optimizer.kind}" needs whole weights in every process: set '
            'parallel.data = "ddp", or another optimizer.kind.'
        )


def _write_run_files(
    context: RunContext,
    recipe: Recipe,
    corpus: Corpus,
    setup: ModelSetup,
    metadata: dict[str, Any],
    state: TrainState,
) -> None:
    """Write all files of a run except the weights, and print the summary of the run."""
    run, before = context.run, context.run.read_metadata()
    write_file(run.recipe, format_recipe_file(recipe))
    tokenizers = corpus.tokenizer, corpus.source_tokenizer
    write_without_weights(run.path, setup.lm.spec, *tokenizers, setup.lm.settings)
    metadata["preparation_seconds"] = round(time.monotonic() - context.started, 3)
    kept = ("metric", "higher_is_better", "gflops")
    metadata |= {key: before[key] for key in kept if key in before}
    if state.step:
        metadata["resumed"] = [*dict.fromkeys([*before.get("resumed", []), state.step])]
        run.rewind_metrics(state.step)
        run.rewind_samples(state.step)
    else:
        write_file(run.metrics_file, "")
        run.samples_file.unlink(missing_ok=True)
    run.write_metadata(metadata)
    print_introduction(context.log, recipe, corpus, setup, metadata, state)


def _check_data_unchanged(
    context: RunContext, corpus: Corpus, stored: Mapping[str, Any], *, verify: bool
) -> None:
    """Raise RecipeError if the data has changed since the run started.

    `stored` is the metadata of the resumed run. If `verify` is true, the token shards are also
    checked for corruption.
    """
    known, digests = stored.get("digests", {}), corpus.digests
    changed = [name for name, digest in digests.items() if known.get(name) != digest]
    if changed:
        raise RecipeError(
            f"changed since this run began: {', '.join(changed)}. An exact continuation needs "
            "what there was: restore it, or start a new run with another --out."
        )
    context.log.update(translated("run.verifying_shards"))
    for source in corpus.text_sources if verify else ():
        source.shards.verify(context.parallel.rank, context.parallel.size)


def _print_resumed_step(
    context: RunContext, state: TrainState, machine: Mapping[str, Any], stored: Mapping[str, Any]
) -> None:
    """Print the step at which a run is resumed.

    Also warns if the machine or its settings differ from the stored metadata. In this case the
    results are not bitwise identical to those of an uninterrupted run.
    """
    logged = max((record["step"] for record in context.run.read_metrics()), default=0)
    lost = translated("run.trained_again", logged=logged)
    context.log.print_message(
        "resuming",
        "run.resumed_after",
        step=state.step,
        where=context.run.checkpoints,
        lost=lost if logged > state.step else "",
    )
    changed = [name for name, value in machine.items() if stored.get(name, value) != value]
    if changed:
        changes = ", ".join(f"{k} = {machine[k]} (it was {stored[k]})" for k in changed)
        context.log.warn(
            f"resuming with {changes}: results will be as good, but not equal to the last bit."
        )
