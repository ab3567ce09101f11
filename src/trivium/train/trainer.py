"""The training loop: one visible `for`, for every model and every objective.

The rows and the noise of a step are functions of (seed, step), so that no state of a data loader or
random generator is saved. Losses are sums and counts. Splitting a batch into micro-batches
therefore changes only rounding errors and dropout, which is drawn per micro-batch. The micro-batch
size is part of the recipe of a run.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trivium.data.row_order import derived_seed
from trivium.errors import TrainingError
from trivium.messages import translated
from trivium.objectives import LossTerms, Objective, TensorBatch, to_device
from trivium.progress import handle_signals
from trivium.train.callback import Callback
from trivium.train.carried_state import CarriedState, create_carried_state
from trivium.train.defaults import decays_over_epochs
from trivium.train.distributed import SINGLE_PROCESS, Parallel, gradient_sync
from trivium.train.gradient_spikes import SPIKE_WINDOW, is_spike
from trivium.train.loader import BatchStream, GlobalBatch, Loader, split_into_slices
from trivium.train.loss_meter import LossMeter, to_float64
from trivium.train.loss_scale import LossScale
from trivium.train.optimizers import (
    Optimizers,
    change_weight_decay,
    fit_weight_decay_to_epoch,
    set_learning_rate,
)
from trivium.train.optimizers.muon import gather_full_tensor
from trivium.train.phases import phase_end_steps
from trivium.train.recipe import Recipe
from trivium.train.unfreezing import GradualUnfreezing

# Steps between log records.
_LOG_EVERY = 10
# Seconds after which a checkpoint is also saved. The first checkpoint is saved after a quarter of
# this time. If saving is slow, the interval is 20 times the duration of the last save.
_SAVE_SECONDS, _SAVE_SHARE = 120.0, 1 / 20


class Interrupted(KeyboardInterrupt):
    """Raised when Ctrl-C or SIGTERM stops a run. `step` is the last saved step, or 0."""

    def __init__(self, step: int, message: str = "") -> None:
        super().__init__(message or f"interrupted after step {step}, and saved")
        self.step = step


@dataclass
class TrainState:
    """The state that a resumed run needs in addition to the weights and the optimizer state.

    Args:
        step: the number of steps so far.
        tokens: the number of tokens so far.
        seconds: the duration of the run so far.
        preparation_seconds: the part of `seconds` before the first step.
        last_losses: the losses of the last steps, so that a resumed run writes the same log record
            as an uninterrupted run.
        best: the score of the best evaluation, if the best weights are kept.
        best_step: the step of the best evaluation, or 0.
        evaluated_step: the step of the last evaluation.
        evals_since_best: the number of evaluations since the best one, for early stopping.
        last_norms: the recent gradient norms, if spikes are skipped.
        skipped_steps: the number of steps skipped for a spike or, in float16, for an overflow.
        loss_scale: the loss scale in float16.
        borders: the steps at which phases end. Phases whose end is not known yet are missing.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    preparation_seconds: float | None = None
    last_losses: list[Any] = field(default_factory=list)
    best: float | None = None
    best_step: int = 0
    evaluated_step: int = 0
    evals_since_best: int = 0
    last_norms: list[float] = field(default_factory=list)
    skipped_steps: int = 0
    loss_scale: LossScale | None = None
    borders: list[int] = field(default_factory=list)


class TrainStep(nn.Module):
    """A module that computes the losses of a model. DDP, FSDP2 and torch.compile can wrap it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Objective, batch: TensorBatch) -> LossTerms:
        """Return the loss terms of the objective, by name, summed over a micro-batch."""
        return objective.loss(self.model, batch)  # type: ignore[arg-type]


@dataclass
class Trainer:
    """Trains a model in place.

    Args:
        recipe: the recipe of the run, in which all values are set.
        train_step: a `TrainStep` with float32 weights on `device`, or the result of
            `parallelize_step`.
        loader: the loader of the training batches.
        optimizers: the optimizers of the model's parameters, set to the peak learning rates.
        device: the device of the model.
        precision: the dtype of activations.
        started: the value of `time.monotonic` when the command began.
        parallel: the processes of the run.
        callbacks: the logs, the checkpoints, and the user's own callbacks. Each method of
            `Callback` is called on them in this order.
        carried: the model state carried from row to row, if the objective carries state.
        unfreezing: gradual unfreezing of layers; None to train all layers from the start.
        measure: a function that evaluates the model, updates the best score in the state, and
            returns the validation losses and metrics; None if there is no validation data.
        lm: the model that callbacks receive.
        checkpoints: the folder of the checkpoints.
    """

    recipe: Recipe
    train_step: nn.Module
    loader: Loader
    optimizers: Optimizers
    device: torch.device
    precision: torch.dtype
    started: float = field(default_factory=time.monotonic)
    parallel: Parallel = SINGLE_PROCESS
    callbacks: Sequence[Callback] = ()
    carried: CarriedState | None = None
    unfreezing: GradualUnfreezing | None = None
    measure: Callable[[Trainer, TrainState], dict[str, Any]] | None = None
    lm: Any = None
    checkpoints: Path = Path("checkpoints")
    loss_scale: LossScale | None = field(default=None, init=False)
    """The loss scale of a run in float16, or None. `TrainState` refers to the same object."""
    _halved: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        numbers = range(len(self.recipe.phases))
        self._phase_recipes = [*map(self.recipe.for_phase, numbers), self.recipe]
        self.loader.borders = self.planned_phase_ends()[:-1]

    def train(self, state: TrainState) -> TrainState:
        """Train until the budget is used up or early stopping ends the run.

        Raises:
            TrainingError: the loss is not finite, or all gradients in float16 overflow. Progress
                since the last checkpoint is lost.
            Interrupted: Ctrl-C or SIGTERM stopped the run, after a checkpoint was saved.
        """
        state.borders = self.loader.borders = state.borders or self.loader.borders
        try:
            if self.callbacks:
                batch = self.loader.step(state.step)
                for callback in self.callbacks:
                    callback.on_start(batch, self.lm)
            self._train(state)
        except BaseException as error:
            self._call_on_end(error)
            raise
        self._call_on_end(None)
        return state

    def _train(self, state: TrainState) -> None:
        """Run the training loop: step, log, evaluate and save until the run ends."""
        if state.step and self.progress(state) >= 1.0:  # a resumed run with nothing left to do
            self._evaluate_finished_run(state)
            return
        seconds_before = state.seconds

        def elapsed_seconds() -> float:
            return seconds_before + time.monotonic() - self.started

        [state.seconds] = self.parallel.all_reduce_max(elapsed_seconds())
        if state.preparation_seconds is None:
            state.preparation_seconds = state.seconds
        elif self.recipe.train.minutes is not None:
            # A resumed run prepares once more, which is not training.
            state.preparation_seconds += state.seconds - seconds_before
        meter = LossMeter(self._log_every, saved=state.last_losses)
        timer = StepTimer(state.tokens)
        if self.precision is torch.float16:
            self.loss_scale = state.loss_scale = state.loss_scale or LossScale()
        unread: deque[UnreadStep] = deque()
        self.train_step.train()
        with _handle_stop_signals(self.parallel) as stopped:
            for batch in self.loader.steps_from(state.step):
                lr = self._set_lr_and_weight_decay(batch, state)
                metrics = StepMetrics(*self._take_step(batch, state))
                state.step += 1
                state.tokens += batch.num_tokens
                state.seconds, eval_seconds, save, stop = self.parallel.all_reduce_max(
                    elapsed_seconds(), timer.eval_seconds, self._is_save_due(timer), stopped()
                )
                self._end_phases(state)
                # The budget includes the last evaluation, assumed to be as long as the one before.
                last = self.progress(state, eval_seconds) >= 1.0
                due = self._decide_actions(state, save=bool(save), last=last, stop=bool(stop))
                for callback in self.callbacks:
                    callback.on_step(state.step, 1.0 if last else self.progress(state))
                record, skipped = make_progress_record(state), self._make_skip_record(state)
                unread.append(UnreadStep(batch, metrics, lr, record, skipped, due.log))
                waits = due.evaluate or due.save or batch.stream.objective.rolls_out
                while len(unread) > (1 if self._reads_losses_late and not waits else 0):
                    self._log_step(unread.popleft(), meter, timer)
                if due.evaluate:
                    due = self._evaluate(state, due, timer, elapsed_seconds, stopped)
                if due.save:
                    state.last_losses = meter.to_list()
                    with timer.exclude_from_timing():
                        self._call_on_save(state)
                    timer.saved, timer.save_seconds = time.monotonic(), timer.pause
                if due.end:
                    break
                if due.stop:
                    raise Interrupted(state.step)

    def _set_lr_and_weight_decay(self, batch: GlobalBatch, state: TrainState) -> float:
        """Set the learning rate and weight decay for the next step. Returns the learning rate."""
        peak = self.recipe.optimizer.lr
        assert peak is not None
        optimizer = self._phase_recipe(state.step).optimizer
        fraction = self._step_fraction(state, batch.num_tokens)
        factor = self.recipe.schedule.factor(state.step, self.progress(state), fraction)
        factor *= (optimizer.lr or peak) / peak
        set_learning_rate(self.optimizers, factor)
        if self.recipe.phases:
            change_weight_decay(self.optimizers, optimizer.initial_weight_decay)
        if decays_over_epochs(self.recipe) and self.repeats_data(state.step):
            fit_weight_decay_to_epoch(self.optimizers, self.loader.steps_per_epoch())
        return peak * factor

    @property
    def _log_every(self) -> int:
        """The number of steps between log records. A record has the mean losses of these steps."""
        return self.recipe.train.log_every or _LOG_EVERY

    def _is_save_due(self, timer: StepTimer) -> bool:
        """Return whether a checkpoint is due because the last one is minutes old.

        Returns False if all checkpoints are kept, or if weights are averaged over checkpoints,
        since the steps of these checkpoints must not depend on the clock.
        """
        train = self.recipe.train
        by_steps = train.keep_checkpoints == "all" or train.average > 1
        return not by_steps and timer.is_save_due()

    def _decide_actions(self, state: TrainState, *, save: bool, last: bool, stop: bool) -> Actions:
        """Decide which actions follow the step that has just ended, such as an evaluation.

        Args:
            state: the state of the run.
            save: whether a checkpoint is due because the last one is minutes old.
            last: whether this is the last step of the budget.
            stop: whether a signal asked the run to stop.
        """
        train, step = self.recipe.train, state.step
        assert train.eval_every is not None
        assert train.save_every is not None
        return Actions(
            log=step % self._log_every == 0 or last,
            evaluate=step % train.eval_every == 0 or last,
            save=step % train.save_every == 0 or save or last or stop,
            end=last,
            stop=stop,
        )

    def _evaluate(
        self,
        state: TrainState,
        due: Actions,
        timer: StepTimer,
        elapsed_seconds: Callable[[], float],
        stopped: Callable[[], bool],
    ) -> Actions:
        """Evaluate the model. Returns updated actions, since early stopping can end the run."""
        with timer.exclude_from_timing():
            metrics = self.measure(self, state) if self.measure else {}
        timer.eval_seconds, state.evaluated_step = timer.pause, state.step
        state.seconds, stop = self.parallel.all_reduce_max(elapsed_seconds(), stopped())
        stop_early = state.evals_since_best >= (self.recipe.train.patience or math.inf)
        self._call_on_evaluate(state, metrics)
        self.train_step.train()
        end = due.end or stop_early or self.progress(state) >= 1.0
        return replace(due, save=due.save or end or bool(stop), end=end, stop=bool(stop))

    def repeats_data(self, step: int) -> bool:
        """Return whether a step, counted from 0, uses rows that earlier steps have used."""
        return self.loader.epochs_at(step) >= 1.0

    def progress(self, state: TrainState, more_seconds: float = 0.0) -> float:
        """Return the fraction of the budget that has been used, 0 to 1.

        If the budget is in minutes, `more_seconds` is added to the time used so far.
        """
        train = self.recipe.train
        if train.minutes is not None:
            seconds = state.seconds + more_seconds - (state.preparation_seconds or 0.0)
            share = seconds / (60.0 * train.minutes)
        elif (tokens := self._budget_tokens) is not None:
            share = state.tokens / tokens
        else:
            share = state.step / self.budget_steps
        return min(1.0, share)

    def _step_fraction(self, state: TrainState, num_tokens: int) -> float:
        """Return the fraction of the budget that the next step uses.

        If the budget is in minutes, the next step is assumed to take as long as the average step so
        far.
        """
        train = self.recipe.train
        if train.minutes is not None:
            return self.progress(state) / max(1, state.step)
        tokens = self._budget_tokens
        return num_tokens / tokens if tokens else 1.0 / self.budget_steps

    @property
    def budget_steps(self) -> int:
        """The budget in steps, converted if it is in epochs. The last step may be smaller."""
        steps, epochs = self.recipe.train.steps, self.recipe.train.epochs or 0.0
        if self.recipe.phases and epochs:
            return self.planned_phase_ends()[-1]
        # Less than the rounding error of the product.
        return steps or max(1, math.ceil(epochs * self.loader.steps_per_epoch() - 1e-6))

    @property
    def _budget_tokens(self) -> float | None:
        """The budget in tokens; None for a budget in steps or minutes.

        A budget in epochs is converted to tokens if the run has phases.
        """
        epochs, last = self.recipe.train.epochs, self.loader.phases[-1]
        if self.recipe.phases and epochs:
            return epochs * last.steps_per_epoch * last.tokens_per_step
        return self.recipe.train.tokens

    def planned_phase_ends(self) -> list[int]:
        """Return the step at which each phase ends, including the last phase.

        The list is empty if there are no phases, or if the budget is in minutes.
        """
        if not self.recipe.phases or self.recipe.train.minutes is not None:
            return []
        return phase_end_steps(
            [phase.until for phase in self.recipe.phases],
            [phase.tokens_per_step for phase in self.loader.phases],
            steps=self.recipe.train.steps,
            tokens=self._budget_tokens,
        )

    def _end_phases(self, state: TrainState) -> None:
        """Record the end of a phase if the used fraction of the budget has reached `until`.

        This is needed if the budget is in minutes. Otherwise, all ends are known from the start.
        """
        untils = [phase.until for phase in self.recipe.phases]
        while len(state.borders) < len(untils) and (
            self.progress(state) >= untils[len(state.borders)]
        ):
            state.borders.append(state.step)

    def _phase_recipe(self, step: int) -> Recipe:
        """Return the recipe with the overrides of the phase that contains a step."""
        return self._phase_recipes[self.loader.phase_index(step)]

    def _evaluate_finished_run(self, state: TrainState) -> None:
        """Evaluate and save a resumed run that was interrupted at the end of its budget.

        Does nothing if the last step has already been evaluated.
        """
        if state.evaluated_step == state.step:
            return
        metrics = self.measure(self, state) if self.measure else {}
        state.evaluated_step = state.step
        self._call_on_evaluate(state, metrics)
        self._call_on_save(state)

    def _call_on_evaluate(self, state: TrainState, metrics: dict[str, Any]) -> None:
        """Call `on_evaluate` of every callback with the metrics, unless there are no metrics."""
        record = make_progress_record(state) | metrics
        for callback in self.callbacks if metrics else ():
            callback.on_evaluate(record, self.lm)

    def _call_on_save(self, state: TrainState) -> None:
        """Call `on_save` of every callback with the folder of the new checkpoint."""
        for callback in self.callbacks:
            callback.on_save(self.checkpoints / f"step-{state.step:08}")

    def _call_on_end(self, error: BaseException | None) -> None:
        """Call `on_end` of every callback, even if another callback raises an error."""
        with ExitStack() as stack:
            for callback in reversed(self.callbacks):
                stack.callback(callback.on_end, error)

    @property
    def _reads_losses_late(self) -> bool:
        """Whether the host reads the losses of a step while the device computes the next step."""
        return self.device.type == "cuda"

    def _log_step(self, step: UnreadStep, meter: LossMeter, timer: StepTimer) -> None:
        """Wait for the losses of a step and check them. Calls `on_log` if a log record is due.

        Raises TrainingError if the loss or the gradient norm is not finite.
        """
        losses, norm = step.metrics.read()
        overflows = self.loss_scale is not None and not math.isfinite(norm)
        if losses:
            total = sum(map(float, losses.values()))
            _check_finite(total, 0.0 if overflows else norm, step.record["step"], step.lr)
            meter.add(step.batch.stream.name, losses, step.batch.loss_denominators)
        if step.is_logged:
            record = step.record | meter.compute_means("train", self.loader.streams)
            record |= {"lr": step.lr, "grad_norm": norm}
            record["tokens_per_second"] = round(timer.measure_throughput(step.record["tokens"]), 1)
            record |= step.skipped
            for callback in self.callbacks:
                callback.on_log(record)

    def _make_skip_record(self, state: TrainState) -> dict[str, Any]:
        """Return the number of skipped steps and the loss scale, as entries for a log record.

        Entries that do not apply to the run are omitted.
        """
        record: dict[str, Any] = {}
        if self.recipe.train.skip_spikes is not None or self.loss_scale is not None:
            record["skipped_steps"] = state.skipped_steps
        if self.loss_scale is not None:
            record["loss_scale"] = self.loss_scale.factor
        return record

    def _take_step(self, batch: GlobalBatch, state: TrainState) -> tuple[LossTerms, Tensor]:
        """Update the weights with the gradients of a batch, `num_iterations` times.

        Returns the losses and the gradient norm of the last update. The losses are empty if this
        update was skipped because of a gradient spike.

        Raises:
            TrainingError: gradients in float16 overflow at every loss scale.
        """
        losses, norm = {}, torch.zeros(())
        for _ in range(batch.num_iterations):
            batch, losses = self._compute_gradients(batch, state.step)
            if self.loss_scale is not None:
                self.loss_scale.unscale(self.train_step.parameters())
            if self.unfreezing is not None:
                self.unfreezing.drop_gradients(self.progress(state))
            clip = self._phase_recipe(state.step).train.clip or math.inf  # 0: no limit
            norm = gather_full_tensor(nn.utils.clip_grad_norm_(self.train_step.parameters(), clip))
            overflows = self._check_overflow(state, norm)
            if not overflows and self._check_spike(state, norm):
                losses = {}
            for optimizer in self.optimizers:
                if losses and not overflows:
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return losses, norm

    def _compute_gradients(self, batch: GlobalBatch, step: int) -> tuple[GlobalBatch, LossTerms]:
        """Compute the gradients of a batch. If memory runs out, use smaller micro-batches.

        Returns the batch with the micro-batches that were used, and its summed losses.
        """
        losses = None
        while losses is None:
            with suppress(torch.cuda.OutOfMemoryError):
                losses = forward_backward(self, batch, step)
            if losses is None:  # the memory of the failed pass is free here
                batch = self._halve_micro_batches(batch, step)
        return batch, losses

    def _check_overflow(self, state: TrainState, norm: Tensor) -> bool:
        """Return whether the gradients overflow float16. Also updates the loss scale.

        Raises TrainingError if gradients overflow even at the smallest loss scale.
        """
        scale = self.loss_scale
        if scale is None:
            return False
        overflows = not math.isfinite(float(norm))
        scale.update(overflowed=overflows)
        state.skipped_steps += overflows
        if scale.is_too_small:
            raise TrainingError(
                f"gradients overflow float16 at step {state.step + 1}, however small the factor of "
                "the loss. The run stops at its last good checkpoint: resume it with "
                "train.precision=fp32, or a lower optimizer.lr."
            )
        return overflows

    def _check_spike(self, state: TrainState, norm: Tensor) -> bool:
        """Return whether to skip a step because of a gradient spike. Also updates the state.

        The state contains the recent gradient norms and the number of skipped steps.
        """
        factor, last_norms = self.recipe.train.skip_spikes, state.last_norms
        if factor is None:
            return False
        state.last_norms = [*last_norms, float(norm)][-SPIKE_WINDOW:]
        skipped = is_spike(float(norm), last_norms, factor)
        state.skipped_steps += skipped
        return skipped

    def _halve_micro_batches(self, batch: GlobalBatch, step: int) -> GlobalBatch:
        """Halve the micro-batch size after running out of memory. Returns the new batch.

        All later steps use the smaller size, too. Raises TrainingError if the size has been halved
        before, or if there are several processes.
        """
        tokens = f"{batch.micro_batch_tokens:,}"
        if self.parallel.size > 1:  # the other processes wait inside the step
            raise TrainingError(
                f"out of GPU memory at step {step + 1}: set train.micro_batch_tokens to less than "
                f'{tokens}, parallel.data = "fsdp" or parallel.activation_checkpointing = true.'
            )
        if self._halved:
            raise TrainingError(
                f"out of GPU memory at step {step + 1}, also after halving the micro-batch "
                f"to {tokens} tokens: set a smaller train.micro_batch_tokens, a shorter "
                "data.length or a smaller model."
            )
        self._halved = True
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return self.loader.halve_micro_batches(step)


def forward_backward(trainer: Trainer, batch: GlobalBatch, step: int) -> LossTerms:
    """Compute the gradients of a step's mean loss. Returns the summed loss terms.

    The loss of every micro-batch is divided by the label counts of the whole step, so that the sum
    of the gradients is the gradient of the full batch. Dropout is seeded by (seed, step,
    micro-batch). If there are several processes, each computes its own micro-batches; gradients and
    losses are then summed over all processes. In float16, the gradients are multiplied by the loss
    scale.
    """
    if trainer.carried is not None:
        trainer.carried.begin_step(step, is_prefill=batch.is_prefill)
    objective, train_step, parallel = batch.stream.objective, trainer.train_step, trainer.parallel
    term_weights = objective.term_weights()
    sums = {term: torch.zeros((), device=trainer.device) for term in batch.loss_denominators}
    enabled = trainer.precision is not torch.float32
    factor = 1.0 if trainer.loss_scale is None else trainer.loss_scale.factor
    for place, (number, weight) in enumerate(batch.micro_batch_weights, start=1):
        torch.manual_seed(derived_seed(trainer.recipe.seed, step, number))
        tensors = _copy_to_device(trainer, batch, place - 1, trainer.carried)
        is_last = place == len(batch.micro_batch_weights)
        reduce_once = trainer.recipe.parallel.reduce_once
        with gradient_sync(train_step, is_last=is_last, reduce_once=reduce_once):
            with torch.autocast(trainer.device.type, trainer.precision, enabled=enabled):
                losses: LossTerms = train_step(objective, tensors)
            mean = sum(
                term_weights.get(term, 1.0) * losses[term] / max(count, 1)
                for term, count in batch.loss_denominators.items()
                if term in losses
            )
            assert isinstance(mean, Tensor)
            # DDP and FSDP take the mean over processes, and the step's gradient is their sum.
            (mean * (weight * parallel.gradient_group_size * factor)).backward()
        for term, loss in losses.items():
            sums[term] += weight * loss.detach()
    return parallel.all_reduce(sums)


@torch.no_grad()
def compute_validation_losses(
    trainer: Trainer, streams: Sequence[BatchStream], limit: int | None = None
) -> dict[str, float]:
    """Compute the mean validation losses. Returns them by the names under which they are logged.

    Every call uses the same rows or examples with the same noise: about `train.eval_tokens` tokens,
    and at most `limit` examples of a labelled source. The model is left in evaluation mode.

    Args:
        trainer: the trainer of the model.
        streams: the streams of the sources that have validation data.
        limit: the maximum number of examples of a labelled source; None for no maximum.
    """
    if not streams:
        return {}
    train_step, parallel, loader = trainer.train_step, trainer.parallel, trainer.loader
    probabilities = {
        one.name: share
        for one, share in zip(loader.streams, loader.sampling_probabilities, strict=True)
    }
    train_step.eval()
    meter, enabled = LossMeter(), trainer.precision is not torch.float32
    for stream in streams:
        tokens = max(1, round(probabilities[stream.name] * trainer.recipe.train.eval_tokens))
        most = limit if stream.objective.labelled else None
        sums: dict[str, Tensor] = {}
        counts: Counter[str] = Counter()
        carried = trainer.carried and create_carried_state(trainer.carried.model, stream)
        for batch in stream.validation_batches(tokens, most, parallel):
            counts.update(batch.loss_denominators)
            for place, (_, weight) in enumerate(batch.micro_batch_weights):
                tensors = _copy_to_device(trainer, batch, place, carried)
                with torch.autocast(trainer.device.type, trainer.precision, enabled=enabled):
                    losses = train_step(stream.objective, tensors)
                for term, loss in losses.items():
                    sums[term] = sums.get(term, 0.0) + weight * to_float64(loss)
        totals = dict(zip(counts, parallel.all_reduce_sum(*counts.values()), strict=True))
        meter.add(stream.name, parallel.all_reduce(sums), totals)
    return meter.compute_means("valid", streams, probabilities)


def _copy_to_device(
    trainer: Trainer, batch: GlobalBatch, index: int, carried: CarriedState | None
) -> TensorBatch:
    """Copy a micro-batch of a batch to the device; `index` is its position in the batch.

    If the objective carries model state from one batch to the next, the state of each row's text
    stream is attached, except for micro-batches with weight 0, which only repeat others.
    """
    tensors = to_device(batch.micro_batches[index], trainer.device)
    if batch.stream.objective.needs_whole_step:
        parallel = trainer.parallel
        slices = split_into_slices(batch.micro_batches[index], batch.micro_batch_tokens, parallel)
        group = None if parallel.data is None else parallel.data.get_group()
        return replace(tensors, slices=slices, group=group)
    _, weight = batch.micro_batch_weights[index]
    if carried is None or not weight:
        return tensors
    return carried.attach_state(tensors, batch.text_streams[index])


class StepMetrics:
    """The losses and the gradient norm of a step.

    On CUDA, these values are copied to the host while training continues; `read` waits for the
    copy.
    """

    def __init__(self, losses: LossTerms, norm: Tensor) -> None:
        self.terms = list(losses)
        numbers = torch.stack([to_float64(one.detach()) for one in (*losses.values(), norm)])
        is_cuda = numbers.device.type == "cuda"
        self.numbers = numbers.to("cpu", non_blocking=is_cuda)
        self.copied = torch.cuda.Event() if is_cuda else None
        if self.copied is not None:
            self.copied.record()

    def read(self) -> tuple[LossTerms, float]:
        """Wait until the step has been computed. Returns its loss terms and its gradient norm."""
        if self.copied is not None:
            self.copied.synchronize()
        *losses, norm = self.numbers
        return dict(zip(self.terms, losses, strict=True)), float(norm)


@dataclass
class UnreadStep:
    """A step whose losses the host has not read yet. The GPU may still be computing the step.

    Args:
        batch: the batch of the step.
        metrics: the losses and the gradient norm.
        lr: the learning rate.
        record: the first entries of the log record: step, tokens and seconds.
        skipped: the entries of the log record for the skipped steps and the loss scale.
        is_logged: whether a log record is written for the step.
    """

    batch: GlobalBatch
    metrics: StepMetrics
    lr: float
    record: dict[str, Any]
    skipped: dict[str, Any]
    is_logged: bool


@dataclass(frozen=True)
class Actions:
    """The actions that are due after a step. All processes have the same values.

    Args:
        log: whether to write a log record.
        evaluate: whether to evaluate the model.
        save: whether to save a checkpoint.
        end: whether the run ends because its budget is used up or because of early stopping.
        stop: whether the run ends because of a signal.
    """

    log: bool
    evaluate: bool
    save: bool
    end: bool
    stop: bool


class StepTimer:
    """Measures the throughput in tokens per second, excluding evaluations and checkpoints."""

    def __init__(self, tokens: int = 0) -> None:
        self.tokens, self.start = tokens, time.monotonic()
        self.saved = self.start
        self.pause = self.eval_seconds = self.save_seconds = 0.0
        """The duration in seconds of the last pause, evaluation and checkpoint."""

    def is_save_due(self) -> bool:
        """Return whether the last checkpoint is minutes old, so that a new one is due."""
        age = time.monotonic() - self.saved
        seconds = _SAVE_SECONDS if self.save_seconds else _SAVE_SECONDS / 4
        return age > max(seconds, self.save_seconds / _SAVE_SHARE)

    def measure_throughput(self, tokens: int) -> float:
        """Return the throughput since the last call, in tokens per second.

        `tokens` is the number of tokens since the beginning of the run.
        """
        now = time.monotonic()
        rate = (tokens - self.tokens) / max(now - self.start, 1e-9)
        self.tokens, self.start = tokens, now
        return rate

    @contextmanager
    def exclude_from_timing(self) -> Iterator[None]:
        """Context manager that excludes the time inside the block from the throughput."""
        begin = time.monotonic()
        yield
        self.pause = time.monotonic() - begin
        self.start += self.pause


def make_progress_record(state: TrainState) -> dict[str, Any]:
    """Return the first entries of every metrics record: step, tokens and seconds so far."""
    return {"step": state.step, "tokens": state.tokens, "seconds": round(state.seconds, 3)}


def _check_finite(loss: float, norm: float, step: int, lr: float) -> None:
    """Raise TrainingError if the loss or the gradient norm of a step is not finite."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    raise TrainingError(
        f"the loss is not finite at step {step} (loss {loss}, gradient norm {norm}, "
        f"learning rate {lr:.2g}). The run stops at its last good checkpoint: resume it with a "
        "lower optimizer.lr, a longer schedule.warmup or a smaller train.clip; "
        "train.precision=fp32 shows whether precision is the cause."
    )


@contextmanager
def _handle_stop_signals(parallel: Parallel) -> Iterator[Callable[[], bool]]:
    """Context manager that handles SIGINT and SIGTERM, so that the run stops after a step.

    Yields a function that returns whether a signal was received. A second Ctrl-C stops the run at
    once, except under `torchrun`, which forwards a Ctrl-C to processes that have already received
    it from the terminal.
    """
    received = False
    stopping, again = translated("run.stopping"), translated("run.stopping_again")

    def on_signal(signum: int, frame: Any) -> None:
        nonlocal received
        if received and signum == signal.SIGINT and parallel.size == 1:
            raise KeyboardInterrupt
        received = True
        if not parallel.is_main:
            return
        message = stopping
        if parallel.size == 1 and signum == signal.SIGINT:
            message = again
        # Python's own streams do not allow a handler to interrupt another write.
        with suppress(OSError):
            os.write(2, f"\n{message}\n".encode())

    with handle_signals(on_signal):
        yield lambda: received
