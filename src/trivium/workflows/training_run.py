"""Training of one run: the loop, its evaluations and checkpoints, its output and its files."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trivium.data.shards import TRAIN, VALIDATION
from trivium.errors import RecipeError
from trivium.files import sync, write_file
from trivium.interop import tensor_files
from trivium.messages import translated
from trivium.model_folder import checkpoints, write_without_weights
from trivium.plan.forecast import say_forecast
from trivium.progress import ProgressLine
from trivium.train import defaults, hardware
from trivium.train.callback import Callback
from trivium.train.carried_state import carried_state
from trivium.train.checkpoint import Checkpoints
from trivium.train.distributed import Parallel, parallelize_step
from trivium.train.health import LossMonitor
from trivium.train.loader import BatchStream
from trivium.train.loss_meter import joined
from trivium.train.memory import fit_memory, resumed_micro_batch
from trivium.train.optimizers import Optimizers
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import recipe_file
from trivium.train.rollout import RolloutLoader
from trivium.train.run_folder import RunFolder
from trivium.train.run_log import RunLog
from trivium.train.trainer import Hooks, Trainer, TrainState, TrainStep, validation_losses
from trivium.train.unfreezing import GradualUnfreezing
from trivium.train.whole_model import WholeModel
from trivium.workflows.corpus import Corpus
from trivium.workflows.finished_run import FinishedRun, HeldOutMetrics
from trivium.workflows.introduction import (
    introduce,
    run_facts,
    say_finished,
    tell_phases,
    tell_steps,
)
from trivium.workflows.model_setup import ModelSetup
from trivium.workflows.streams import build_phases, build_streams, source_shares

# The number of prompts whose responses are logged at every evaluation of a policy run.
_SAMPLES = 3


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
    module, lm, before = setup.module, setup.lm, run.read_facts()
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
    shares = source_shares(recipe, streams)
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
    divided = parallel.size > 1 and memory.data == "fsdp"
    if divided:
        _check_divided(recipe)
    held_out = HeldOutMetrics(corpus, recipe, precision, parallel, divided=divided)
    held_out.prepare(lm, before.get("eval_limit"))
    model = WholeModel(module, lm, recipe.objectives[0].models, parallel, divided=divided)
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
        _say_resumed(context, state, machine, before)
        _drop_abandoned_best(context, state)
    parallel.barrier()  # all have read run.json, which the first one writes now
    log_book = None
    if parallel.is_main:
        facts = run_facts(recipe, corpus, setup, shares, held_out) | machine
        facts["gflops"] = dict(arithmetic.gflops)
        facts["peak_flops"] = hardware.peak_flops(device, precision)
        log_book = _open_log(context, recipe, corpus, setup, held_out, facts, state)
    hooks = RunHooks(
        *(context, recipe, model, held_out, validation_streams, saved, optimizers, log_book),
        saved_best_step=state.best_step,
    )
    loader = RolloutLoader(
        streams,
        list(shares.values()),
        seed=recipe.seed,
        micro_batch_tokens=memory.micro_batch_tokens,
        parallel=parallel,
        earlier=phases[:-1],
        continues=phases[-1].continues,
        lm=lm,
        module=module,
        precision=precision,
    )
    trainer = Trainer(
        recipe,
        train_step,
        loader,
        optimizers,
        device,
        precision,
        context.started,
        parallel,
        hooks,
        carried,
        unfreezing,
    )
    if state.step == 0:
        tell_steps(line, trainer, lm.spec)
        tell_phases(line, trainer)
        facts = run.read_facts() if parallel.is_main else {}
        facts |= say_forecast(trainer, memory, facts, line)
        if parallel.is_main:
            run.write_facts(facts)
    run.training = True
    for callback in context.callbacks if parallel.is_main else ():
        callback.on_start(loader.step(state.step), lm)
    if resume and trainer.progress(state) >= 1.0:
        say_finished(line, recipe, state)
    elif log_book is not None and log_book.metric != "":
        log_book.show_heading()  # the first row may take a while
    try:
        state = trainer.train(state)
    finally:
        saved.wait()
        if log_book is not None:
            log_book.close()
    parallel.barrier()  # the last checkpoint is complete
    [state.best_step] = map(int, parallel.all_reduce_max(state.best_step))  # the first one knows
    for optimizer in optimizers:
        optimizer.state.clear()
    model.gather(device)
    if not held_out.answers_here:
        return None
    finished = FinishedRun(run, line, recipe, corpus, model, held_out)
    finished.write(state)
    return finished if parallel.is_main else None


@dataclass
class RunHooks(Hooks):
    """The actions of a run around the loop: progress, log, evaluations, checkpoints.

    Only the first process has a `log_book`.
    """

    context: RunContext
    recipe: Recipe
    model: WholeModel
    held_out: HeldOutMetrics
    validation_streams: Sequence[BatchStream]
    checkpoints: Checkpoints
    optimizers: Optimizers
    log_book: RunLog | None
    saved_best_step: int
    """The step of the best weights at the last checkpoint."""

    def step(self, number: int, progress: float) -> None:
        """Show the progress of the run."""
        if self.log_book is None:
            return
        self.log_book.show_progress(number, progress)
        for callback in self.context.callbacks:
            callback.on_step(number)

    def log(self, record: dict[str, Any], progress: float) -> None:
        """Write a record of `metrics.jsonl` and show it."""
        if self.log_book is None:
            return
        self.log_book.write(record, progress)
        for callback in self.context.callbacks:
            if "train_loss" in record:
                callback.on_log(record)
            else:
                callback.on_evaluate(record, self.model.lm)

    def out_of_memory(self, step: int, micro_batch_tokens: int) -> None:
        """Store the smaller size of micro-batches for --resume, and warn the user."""
        smaller = {"micro_batch_tokens": micro_batch_tokens}
        self.context.run.write_facts(self.context.run.read_facts() | smaller)
        self.context.line.warn(
            f"out of GPU memory at step {step}: from now on micro-batches have "
            f"{micro_batch_tokens:,} tokens, also after --resume; this changes dropout and "
            "rounding, nothing else."
        )

    def evaluate(self, trainer: Trainer, state: TrainState) -> tuple[dict[str, Any], bool]:
        """Return validation losses and metrics of labelled objectives, and whether to stop early.

        The best weights are kept.
        """
        self.context.line.update(translated("progress.evaluating"))
        measured = self.held_out
        record = validation_losses(trainer, self.validation_streams, measured.limit)
        # Of a mix with labelled examples their metric decides.
        by_loss = (
            "valid_loss" in record and not measured.sources and self._keeps_best(trainer, state)
        )
        if measured.sources or self.context.callbacks or by_loss:
            self.model.gather(self.context.device if measured.sources else torch.device("cpu"))
        if by_loss and self.log_book is not None:
            self._keep_if_best(state, -record["valid_loss"])
        patience = self.recipe.train.patience or math.inf
        if not measured.sources or not measured.answers_here:
            counted = by_loss and self.log_book is not None
            return record, counted and state.evals_since_best >= patience
        metrics = measured.measure(self.model.lm, measured.limit)
        if self.log_book is None:
            return record, False
        for name, one in metrics.items():
            prefix = f"valid_{name}/" if name else "valid_"
            record = joined(record, {prefix + key: v for key, v in one.values.items()})
        name, first = next(iter(metrics.items()))
        main = f"{name}/{first.main}" if name else first.main
        if measured.sources[0].objective.rolls_out:
            record = {**record, "samples": first.predictions[:_SAMPLES]}
        if self.log_book.metric == "" and math.isfinite(first.score):
            self.log_book.metric = main
            known = {"metric": main, "higher_is_better": first.higher_is_better}
            self.context.run.write_facts(self.context.run.read_facts() | known)
        elif self.log_book.metric == "":
            self.log_book.metric = None
            self.context.line.tell("metrics", "run.metric_undefined", metric=main)
        loss_score = -record.get("valid_loss", math.nan)
        self._keep_if_best(state, first.score if self.log_book.metric else loss_score)
        self.model.release()
        return record, state.evals_since_best >= patience

    def _keeps_best(self, trainer: Trainer, state: TrainState) -> bool:
        """Return whether the weights of the lowest validation loss are kept.

        Unless the recipe decides, they are kept from the second pass over the text on, since a
        model overfits only text that it has seen before.
        """
        train = self.recipe.train
        if train.keep_best is None and train.patience is None:
            return trainer.reads_again(state.step - 1)
        return train.keep_best is not False

    def _keep_if_best(self, state: TrainState, score: float) -> None:
        """Write the weights if no earlier evaluation had a higher score; update the state."""
        if math.isfinite(score) and (state.best is None or score > state.best):
            state.best, state.best_step, state.evals_since_best = score, state.step, 0
            run = self.context.run
            run.checkpoints.mkdir(exist_ok=True)
            tensor_files.write_safetensors(run.best(state.step), self.model.whole.state_dict())
            # A resumed run may need the best weights that its checkpoint knows.
            self.checkpoints.wait()
            run.keep_best(state.step, self.saved_best_step)
        else:
            state.evals_since_best += 1

    def save(self, state: TrainState) -> None:
        """Write a checkpoint."""
        self.context.line.update(translated("progress.saving"))
        if self.log_book is not None:
            sync(self.context.run.metrics_file)  # a checkpoint has all records before it
        self.checkpoints.save(self.model.module, self.optimizers, state)
        self.saved_best_step = state.best_step
        if self.context.callbacks:
            self.checkpoints.wait()
        for callback in self.context.callbacks if self.log_book is not None else ():
            callback.on_save(self.context.run.checkpoints / f"step-{state.step:08}")


def _check_divided(recipe: Recipe) -> None:
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


def _open_log(
    context: RunContext,
    recipe: Recipe,
    corpus: Corpus,
    setup: ModelSetup,
    held_out: HeldOutMetrics,
    facts: dict[str, Any],
    state: TrainState,
) -> RunLog:
    """Write all files of a run except its weights, and tell what the run trains."""
    run, before = context.run, context.run.read_facts()
    write_file(run.recipe, recipe_file(recipe))
    tokenizers = corpus.tokenizer, corpus.source_tokenizer
    write_without_weights(run.path, setup.lm.spec, *tokenizers, setup.lm.settings)
    facts["preparation_seconds"] = round(time.monotonic() - context.started, 3)
    kept = ("metric", "higher_is_better", "gflops")
    facts |= {key: before[key] for key in kept if key in before}
    if state.step:
        facts["resumed"] = [*dict.fromkeys([*before.get("resumed", []), state.step])]
        run.rewind_metrics(state.step)
    else:
        write_file(run.metrics_file, "")
    run.write_facts(facts)
    introduce(context.line, recipe, corpus, setup, facts, state)
    unigram = facts.get("unigram_loss")
    patience = max(objective.steps_to_context for objective in recipe.objectives)
    monitor = recipe.objectives[0].monitor()
    if unigram is not None:
        monitor = LossMonitor(unigram, patience)
    return RunLog(
        run,
        context.line,
        recipe.train,
        facts,
        metric=facts.get("metric", "") if held_out.sources else None,
        monitor=monitor,
    )


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


def _drop_abandoned_best(context: RunContext, state: TrainState) -> None:
    """Delete best weights of steps after the checkpoint; warn if those of the state are missing."""
    if state.best_step and not context.run.best(state.best_step).is_file():
        context.line.warn(
            f"the best weights so far, of step {state.best_step:,}, are missing: the best ones are "
            "chosen among the evaluations from here on."
        )
        state.best, state.best_step, state.evals_since_best = None, 0, 0
    context.parallel.barrier()  # all have looked
    if context.parallel.is_main:
        context.run.keep_best(state.best_step)


def _say_resumed(
    context: RunContext, state: TrainState, machine: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Tell at which step a run continues, and what may change the last bits of its results."""
    logged = max((record["step"] for record in context.run.read_metrics()), default=0)
    lost = translated("run.trained_again", logged=logged)
    context.line.tell(
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
