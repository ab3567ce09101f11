"""Training of one run: the loop, its evaluations and checkpoints, its output and its files."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trivium.data.shards import TRAIN, VALIDATION
from trivium.errors import RecipeError
from trivium.files import write_file
from trivium.messages import translated
from trivium.model_folder import checkpoints, write_without_weights
from trivium.plan.forecast import print_forecast
from trivium.progress import ProgressLine
from trivium.train import defaults, hardware
from trivium.train.callback import Callback
from trivium.train.carried_state import carried_state
from trivium.train.checkpoint import Checkpoints, SaveCheckpoints
from trivium.train.distributed import Parallel, parallelize_step
from trivium.train.health import LossMonitor, WarnOfRecords
from trivium.train.kept_weights import KeptWeights, drop_abandoned_best
from trivium.train.memory import StoreMicroBatchSize, fit_memory, resumed_micro_batch
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import recipe_file
from trivium.train.rollout import RolloutLoader
from trivium.train.run_folder import RunFolder
from trivium.train.terminal_log import TerminalLog
from trivium.train.trackers import MetricsFile, TensorBoard
from trivium.train.trainer import Trainer, TrainState, TrainStep
from trivium.train.unfreezing import GradualUnfreezing
from trivium.train.whole_model import WholeModel
from trivium.workflows.corpus import Corpus
from trivium.workflows.finished_run import FinishedRun, ValidationMetrics
from trivium.workflows.introduction import (
    introduce,
    print_finished,
    print_phases,
    print_steps,
    run_metadata,
)
from trivium.workflows.model_setup import ModelSetup
from trivium.workflows.run_evaluation import RunEvaluation
from trivium.workflows.streams import build_phases, build_streams, sampling_probabilities


@dataclass(frozen=True)
class RunContext:
    """The folder, output, device and processes of a run.

    Args:
        run: the folder of the run.
        line: where progress is shown; quiet except in the first process.
        device: the device of this process.
        parallel: the processes of the run.
        callbacks: the callbacks of the user.
        started: `time.monotonic` when the command began.
    """

    run: RunFolder
    line: ProgressLine
    device: torch.device
    parallel: Parallel
    callbacks: Sequence[Callback]
    started: float


def train_run(
    context: RunContext, corpus: Corpus, setup: ModelSetup, *, resume: bool
) -> FinishedRun | None:
    """Train to the end of the budget, and write everything. The first process returns the run."""
    run, line, device, parallel = context.run, context.line, context.device, context.parallel
    module, lm, before = setup.module, setup.lm, run.read_metadata()
    recipe = defaults.complete(
        setup.recipe, lm.spec, num_examples=sum(one.num_train for one in corpus.examples)
    )
    uses_flex = recipe.train.uses_flex(device)
    arithmetic = hardware.choose_arithmetic(recipe.train.precision, device, module, before)
    known = list(hardware.PRECISIONS.values())  # of GPUs that differ, the one that all have
    [index] = parallel.all_reduce_max(known.index(arithmetic.precision))
    precision = known[int(index)]
    # Weights of norms stay in float32 where they read bfloat16 (Gemma 2, Qwen3), as is meant.
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    torch.set_num_threads(arithmetic.threads)
    # Labels that the model computes itself are of the precision that it is trained in.
    with torch.autocast(device.type, precision, enabled=precision is not torch.float32):
        streams, validation_streams = (
            build_streams(recipe, corpus, setup, split, run.examples, parallel)
            for split in (TRAIN, VALIDATION)
        )
    validation_streams = [one for one in validation_streams if not one.objective.rolls_out]
    corpus.free_examples()
    lengths = [one.longest for one in (*streams, *validation_streams) if one.objective.labelled]
    setup.fit_length(corpus, max(lengths, default=0))
    phases = build_phases(recipe, streams, corpus, setup)
    streams = list(phases[-1].streams)
    probabilities = sampling_probabilities(recipe, streams)
    memory = fit_memory(
        resumed_micro_batch(recipe, before, parallel) if resume else recipe,
        module,
        [stream for phase in phases for stream in phase.streams],
        parallel,
        precision=precision,
        device=device,
    )
    if memory.idle:
        line.warn(memory.idle)
    if uses_flex and (warning := module.use_flex_attention()):  # type: ignore[operator]
        line.warn(warning)
    if recipe.train.compiles(device):
        module.compile_blocks()  # type: ignore[operator]
    is_sharded = parallel.size > 1 and memory.data == "fsdp"
    if is_sharded:
        _check_sharded(recipe)
    validation = ValidationMetrics(corpus, recipe, precision, parallel, is_sharded=is_sharded)
    validation.prepare(lm, before.get("eval_limit"))
    model = WholeModel(module, lm, recipe.objectives[0].models, parallel, is_sharded=is_sharded)
    train_step = parallelize_step(
        TrainStep(module),
        parallel,
        recipe.parallel.replace(data=memory.data),
        precision=precision,
        device=device,
        has_unused=len(recipe.objectives) > 1 or lm.spec.has_optional_weights,
    )
    machine = {
        "device": hardware.describe_device(device),
        "precision": hardware.precision_name(precision),
        "threads": torch.get_num_threads(),
        "processes": parallel.size,
        "micro_batch_tokens": memory.micro_batch_tokens,
        "torch": torch.__version__,
    }
    optimizers = recipe.optimizer.build(module, precision)
    share = recipe.train.gradual_unfreezing
    unfreezing = None if share is None else GradualUnfreezing(module, share)
    carried = carried_state(module, streams[0])
    saved = Checkpoints(
        run.checkpoints,
        parallel,
        carried=carried,
        files=run.model_files,
        keep=max(recipe.train.most_checkpoints, recipe.train.average),
    )
    state = TrainState()
    if resume and next(checkpoints(run.checkpoints), None) is not None:
        _check_unchanged(context, corpus, before, verify=recipe.train.verify)
        state = saved.restore(module, optimizers, line.warn, verify=recipe.train.verify)
        _print_resumed(context, state, machine, before)
        drop_abandoned_best(run, state, line, parallel)
    parallel.barrier()  # all have read run.json, which the first one writes now
    metadata: dict[str, Any] = {}
    if parallel.is_main:
        metadata = run_metadata(recipe, corpus, setup, probabilities, validation) | machine
        metadata["gflops"] = dict(arithmetic.gflops)
        metadata["peak_flops"] = hardware.peak_flops(device, precision)
        _write_files(context, recipe, corpus, setup, metadata, state)
    metric = metadata.get("metric", "") if validation.sources else None
    kept = KeptWeights(run, recipe, model, saved, state, metric)
    loader = RolloutLoader(
        streams,
        list(probabilities.values()),
        seed=recipe.seed,
        micro_batch_tokens=memory.micro_batch_tokens,
        parallel=parallel,
        earlier=phases[:-1],
        continues=phases[-1].continues,
        lm=lm,
        module=module,
        precision=precision,
    )
    reads = bool(context.callbacks)
    trainer = Trainer(
        recipe,
        train_step,
        loader,
        optimizers,
        device,
        precision,
        context.started,
        parallel,
        carried=carried,
        unfreezing=unfreezing,
        measure=RunEvaluation(line, device, validation, validation_streams, kept, reads),
        lm=lm,
        checkpoints=run.checkpoints,
    )
    if state.step == 0:
        print_steps(line, trainer, lm.spec)
        print_phases(line, trainer)
        stored = run.read_metadata() if parallel.is_main else {}
        stored |= print_forecast(trainer, memory, stored, line)
        if parallel.is_main:
            run.write_metadata(stored)
    run.training = True
    is_finished = resume and trainer.progress(state) >= 1.0
    if is_finished:
        print_finished(line, recipe, state)
    save = SaveCheckpoints(saved, module, optimizers, state, line, waits=reads)
    trainer.callbacks = [save]
    if parallel.is_main:
        trainer.callbacks = [
            StoreMicroBatchSize(run, line, loader),
            *_monitors(run, recipe, metadata),
            MetricsFile(run),
            *([TensorBoard(run.path / "tensorboard")] if recipe.train.tensorboard else []),
            save,
            kept,
            *context.callbacks,
            TerminalLog(line, recipe.train, metadata, lambda: kept.metric, not is_finished),
        ]
    trainer.train(state)
    parallel.barrier()  # the last checkpoint is complete
    [state.best_step] = map(int, parallel.all_reduce_max(state.best_step))  # the first one knows
    for optimizer in optimizers:
        optimizer.state.clear()
    model.gather(device)
    if not validation.predicts_here:
        return None
    finished = FinishedRun(run, line, recipe, corpus, kept, validation)
    finished.write(state)
    return finished if parallel.is_main else None


def _check_sharded(recipe: Recipe) -> None:
    """Raise RecipeError for an objective or optimizer that needs a whole model in every process."""
    if not recipe.optimizer.supports_sharding:
        raise RecipeError(
            f'optimizer.kind = "{recipe.optimizer.kind}" needs whole weights in every process: set '
            'parallel.data = "ddp", or another optimizer.kind.'
        )
    for objective in recipe.objectives:
        if objective.rolls_out:
            raise RecipeError(
                f'objective.kind = "{objective.kind}" needs a whole model in every process: set '
                'parallel.data = "ddp", without replicas, or, to save memory, adapter.rank = 8.'
            )


def _write_files(
    context: RunContext,
    recipe: Recipe,
    corpus: Corpus,
    setup: ModelSetup,
    metadata: dict[str, Any],
    state: TrainState,
) -> None:
    """Write all files of a run except its weights, and tell what the run trains."""
    run, before = context.run, context.run.read_metadata()
    write_file(run.recipe, recipe_file(recipe))
    tokenizers = corpus.tokenizer, corpus.source_tokenizer
    write_without_weights(run.path, setup.lm.spec, *tokenizers, setup.lm.settings)
    metadata["preparation_seconds"] = round(time.monotonic() - context.started, 3)
    kept = ("metric", "higher_is_better", "gflops")
    metadata |= {key: before[key] for key in kept if key in before}
    if state.step:
        metadata["resumed"] = [*dict.fromkeys([*before.get("resumed", []), state.step])]
        run.rewind_metrics(state.step)
    else:
        write_file(run.metrics_file, "")
    run.write_metadata(metadata)
    introduce(context.line, recipe, corpus, setup, metadata, state)


def _monitors(run: RunFolder, recipe: Recipe, metadata: Mapping[str, Any]) -> list[Callback]:
    """Return the callback that warns of runs that go wrong, if there is one for this run."""
    monitor, unigram = recipe.objectives[0].monitor(), metadata.get("unigram_loss")
    if unigram is not None:
        patience = max(objective.steps_to_beat_unigram for objective in recipe.objectives)
        monitor = LossMonitor(unigram, patience)
    return [] if monitor is None else [WarnOfRecords(run, monitor)]


def _check_unchanged(
    context: RunContext, corpus: Corpus, before: Mapping[str, Any], *, verify: bool
) -> None:
    """Raise RecipeError if a run with the facts `before` would be resumed with other data."""
    known, digests = before.get("digests", {}), corpus.digests
    changed = [name for name, digest in digests.items() if known.get(name) != digest]
    if changed:
        raise RecipeError(
            f"changed since this run began: {', '.join(changed)}. An exact continuation needs "
            "what there was: restore it, or start a new run with another --out."
        )
    context.line.update(translated("run.verifying_shards"))
    for source in corpus.texts if verify else ():
        source.shards.verify(context.parallel.rank, context.parallel.size)


def _print_resumed(
    context: RunContext, state: TrainState, machine: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Tell at which step a run continues, and what may change the last bits of its results."""
    logged = max((record["step"] for record in context.run.read_metrics()), default=0)
    lost = translated("run.trained_again", logged=logged)
    context.line.print_message(
        "resuming",
        "run.resumed_after",
        step=state.step,
        where=context.run.checkpoints,
        lost=lost if logged > state.step else "",
    )
    changed = [name for name, value in machine.items() if before.get(name, value) != value]
    if changed:
        changes = ", ".join(f"{k} = {machine[k]} (it was {before[k]})" for k in changed)
        context.line.warn(
            f"resuming with {changes}: results will be as good, but not equal to the last bit."
        )
