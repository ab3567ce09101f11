"""The training loop: one visible `for`, for every model and every objective.

Which rows make a step and what noise they get follows from (seed, step) alone, so that resuming
needs integers only. Losses are sums and counts: how a batch is split never changes the result.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trivium.errors import TrainingError
from trivium.nn.loss import Loss
from trivium.objectives import Losses, Objective, TensorBatch, to_device
from trivium.train.loader import GlobalBatch, Loader
from trivium.train.optimizers import set_learning_rate
from trivium.train.schedules import Schedule


class Interrupted(KeyboardInterrupt):
    """The run was interrupted (Ctrl-C or SIGTERM) and has saved; `step` is its last step."""

    def __init__(self, step: int) -> None:
        super().__init__(f"interrupted after step {step}, and saved")
        self.step = step


@dataclass
class TrainState:
    """What resuming needs besides tensors: integers, and sums for the next log line.

    `preparation_seconds` passed before the first step. `meter` has the steps, sums and counts of
    every source since the last log line, so that a resumed run writes the line an uninterrupted one
    writes. `best` is the score of the best evaluation, if one is kept, and `best_step` its step.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    preparation_seconds: float | None = None
    meter: dict[str, Any] = field(default_factory=dict)
    best: float | None = None
    best_step: int = 0
    evals_since_best: int = 0


@dataclass(frozen=True)
class Budget:
    """How long a run is: in steps, in tokens, or in seconds from its first step; one of them."""

    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def progress(self, state: TrainState) -> float:
        """Share of the budget used up, 0 to 1."""
        if self.steps is not None:
            return min(1.0, state.step / self.steps)
        if self.tokens is not None:
            return min(1.0, state.tokens / self.tokens)
        assert self.seconds is not None
        assert state.preparation_seconds is not None
        return min(1.0, (state.seconds - state.preparation_seconds) / self.seconds)


class Watcher(Protocol):
    """What happens around the loop: log, evaluate, save."""

    def log(self, record: dict[str, Any], progress: float) -> None:
        """Write a record of `metrics.jsonl`."""
        ...

    def evaluate(self, state: TrainState) -> tuple[dict[str, float], bool]:
        """Figures on held-out data, and whether to stop early; notes the best in the state."""
        ...

    def save(self, state: TrainState) -> None:
        """Write a checkpoint."""
        ...

    def warn(self, message: str) -> None:
        """Show a warning."""
        ...


class TrainStep(nn.Module):
    """Model and objective in one forward pass, which DDP, FSDP2 and torch.compile can wrap."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Objective, batch: TensorBatch) -> Losses:
        """The terms of the loss of a micro-batch, as sums and counts."""
        return objective.loss(self.model, batch)  # type: ignore[arg-type]


@dataclass
class Trainer:
    """Trains `model` in place.

    Args:
        model: on `device`, in float32.
        loader: the batches.
        optimizers: over the model's parameters, with peak learning rates.
        clip: largest norm of the gradient.
        precision: of activations.
        started: `time.monotonic` when the command began.
    """

    model: nn.Module
    loader: Loader
    optimizers: list[torch.optim.Optimizer]
    schedule: Schedule
    budget: Budget
    watcher: Watcher
    seed: int
    device: torch.device
    precision: torch.dtype
    clip: float
    log_every: int
    eval_every: int
    save_every: int
    started: float

    def __post_init__(self) -> None:
        self.train_step = TrainStep(self.model)
        self._halved = False

    def train(self, state: TrainState) -> TrainState:
        """Train until the budget is used up or an evaluation ends the run.

        Raises:
            TrainingError: the loss is not finite; nothing after the last checkpoint is kept.
            Interrupted: Ctrl-C or SIGTERM, after a checkpoint was written.
        """
        seconds_before = state.seconds

        def clock() -> float:
            return seconds_before + time.monotonic() - self.started

        state.seconds = clock()
        if state.preparation_seconds is None:
            state.preparation_seconds = state.seconds
        elif self.budget.seconds is not None:
            # A resumed run prepares once more, which is not training.
            state.preparation_seconds += state.seconds - seconds_before
        meter, timer = LossMeter(state.meter, self.device), StepTimer()
        last = self.budget.progress(state) >= 1.0
        eval_seconds = 0.0
        self.model.train()
        if last:
            return state
        with _stop_signals() as stopped:
            for batch in self.loader.steps_from(state.step):
                progress = self.budget.progress(state)
                lr = set_learning_rate(self.optimizers, self.schedule.factor(state.step, progress))
                sums = self._forward_backward(batch, state.step)
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
                if self.device.type == "cpu":
                    _check_finite(sums.sum(), norm, state.step, lr)
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)

                state.step += 1
                state.tokens += batch.num_tokens
                meter.add(batch, sums)
                timer.tokens += batch.num_tokens
                state.seconds = clock()
                # The last evaluation, about as long as the one before, belongs to the budget.
                last = self._is_last(state, eval_seconds)
                if state.step % self.log_every == 0 or last:
                    _check_finite(meter.total(), norm, state.step, lr)
                    record = position(state) | meter.means(self.loader.sources)
                    record |= {"lr": lr, "grad_norm": float(norm)}
                    record["tokens_per_second"] = round(timer.rate(), 1)
                    meter.clear()
                    self.watcher.log(record, self.budget.progress(state))
                if state.step % self.eval_every == 0 or last:
                    with timer.paused() as pause:
                        figures, stop_early = self.watcher.evaluate(state)
                    eval_seconds, state.seconds = pause.seconds, clock()
                    if figures:
                        self.watcher.log(position(state) | figures, self.budget.progress(state))
                    self.model.train()
                    last = last or stop_early or self._is_last(state, 0.0)
                if state.step % self.save_every == 0 or last or stopped():
                    _check_finite(meter.total(), norm, state.step, lr)
                    state.meter = meter.to_dict()
                    with timer.paused():
                        self.watcher.save(state)
                if last:
                    break
                if stopped():
                    raise Interrupted(state.step)
        return state

    def _is_last(self, state: TrainState, ending_seconds: float) -> bool:
        if self.budget.seconds is None:
            return self.budget.progress(state) >= 1.0
        assert state.preparation_seconds is not None
        used = state.seconds + ending_seconds - state.preparation_seconds
        return used >= self.budget.seconds

    def _forward_backward(self, batch: GlobalBatch, step: int) -> Tensor:
        """Gradients of a step's mean loss; a GPU out of memory halves the micro-batch once."""
        if batch.micro_batch_tokens != self.loader.micro_batch_tokens:
            batch = self.loader.step(step)  # prepared before the micro-batch was halved
        try:
            return forward_backward(self.train_step, batch, self, step)
        except torch.cuda.OutOfMemoryError:
            self._recover_memory(step)
        return forward_backward(self.train_step, self.loader.step(step), self, step)

    def _recover_memory(self, step: int) -> None:
        if self._halved:
            raise TrainingError(
                f"out of GPU memory at step {step}, with half the micro-batch too: set a smaller "
                "train.micro_batch_tokens, a shorter data.length or a smaller model."
            ) from None
        self._halved = True
        self.loader.halve_micro_batch()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        self.watcher.warn(
            f"out of GPU memory at step {step}: from now on micro-batches have "
            f"{self.loader.micro_batch_tokens:,} tokens, which changes no result."
        )


def forward_backward(train_step: nn.Module, batch: GlobalBatch, run: Trainer, step: int) -> Tensor:
    """Gradients of one step's mean loss, micro-batch by micro-batch; the sums of its terms [K].

    Every micro-batch is divided by the label counts of the whole step, so that the sum of their
    gradients is the gradient of the full batch. Dropout is keyed by (seed, step, micro-batch).
    """
    weights = batch.objective.weights()
    sums = torch.zeros(len(batch.counts), device=run.device)
    enabled = run.precision is not torch.float32
    for number, micro_batch in enumerate(batch.micro_batches):
        torch.manual_seed(hash((run.seed, step, number)))
        tensors = to_device(micro_batch, run.device)
        with torch.autocast(run.device.type, run.precision, enabled=enabled):
            losses: Losses = train_step(batch.objective, tensors)
        terms = [losses.get(name, _NOTHING) for name in batch.counts]
        total = sum(
            weights.get(name, 1.0) * term.sum / max(count, 1)
            for (name, count), term in zip(batch.counts.items(), terms, strict=True)
        )
        assert isinstance(total, Tensor)
        total.backward()
        for place, term in enumerate(terms):
            sums[place] += term.sum.detach()
    return sums


_NOTHING = Loss(torch.zeros(()), 0)


class LossMeter:
    """Sums and counts of losses since the last log line, by source and term.

    Kept on the device in float64 and brought to the host only where they are logged.
    """

    def __init__(self, saved: dict[str, Any], device: torch.device) -> None:
        self._device = device
        self._sums = {
            int(source): torch.tensor(entry["sums"], dtype=torch.float64, device=device)
            for source, entry in saved.items()
        }
        self._counts = {int(source): dict(entry["counts"]) for source, entry in saved.items()}
        self._steps = {int(source): entry["steps"] for source, entry in saved.items()}

    def add(self, batch: GlobalBatch, sums: Tensor) -> None:
        """Add the losses of a step."""
        source = batch.source
        if source not in self._sums:
            self._sums[source] = torch.zeros_like(sums, dtype=torch.float64)
            self._counts[source] = dict.fromkeys(batch.counts, 0)
            self._steps[source] = 0
        self._sums[source] += sums
        self._steps[source] += 1
        for name, count in batch.counts.items():
            self._counts[source][name] += count

    def means(self, sources: Any) -> dict[str, float]:
        """Mean losses as they are logged, the sources in proportion to their steps."""
        parts = []
        for source, sums in self._sums.items():
            counts = self._counts[source]
            means = {
                name: total / max(count, 1)
                for (name, count), total in zip(counts.items(), sums.tolist(), strict=True)
            }
            objective = sources[source].objective
            parts.append((sources[source].name, self._steps[source], means, objective.weights()))
        return named_means("train", parts)

    def total(self) -> Tensor:
        """The sum of everything, to see whether it is finite."""
        return torch.stack([sums.sum() for sums in self._sums.values()] or [torch.zeros(())]).sum()

    def to_dict(self) -> dict[str, Any]:
        """What the constructor restores."""
        return {
            str(source): {
                "sums": sums.tolist(),
                "counts": self._counts[source],
                "steps": self._steps[source],
            }
            for source, sums in self._sums.items()
        }

    def clear(self) -> None:
        """Start a new log line."""
        self._sums, self._counts, self._steps = {}, {}, {}


def named_means(
    split: str, parts: list[tuple[str, float, dict[str, float], Any]]
) -> dict[str, float]:
    """Mean losses by the names they are logged with.

    Args:
        split: "train" or "valid".
        parts: for every source its name, its share, the mean of every term, and their weights.

    >>> named_means("train", [("", 1, {"mlm": 4.0, "nsp": 0.5}, {"nsp": 0.5})])
    {'train_loss': 4.25, 'train_mlm': 4.0, 'train_nsp': 0.5}
    """
    shares = sum(share for _, share, _, _ in parts)
    named: dict[str, float] = {f"{split}_loss": 0.0}
    for source, share, means, weights in parts:
        loss = sum(weights.get(name, 1.0) * mean for name, mean in means.items())
        named[f"{split}_loss"] += loss * share / shares
        if source:
            named[f"{split}_{source}"] = loss
        if len(means) > 1:
            prefix = f"{split}_{source}_" if source else f"{split}_"
            named |= {prefix + name: mean for name, mean in means.items()}
    return named


class StepTimer:
    """Tokens/s while stepping; evaluations and checkpoints do not count."""

    def __init__(self) -> None:
        self.tokens, self.start = 0, time.monotonic()

    def rate(self) -> float:
        """Tokens/s since the last call."""
        now = time.monotonic()
        rate = self.tokens / max(now - self.start, 1e-9)
        self.tokens, self.start = 0, now
        return rate

    @contextmanager
    def paused(self) -> Iterator[Pause]:
        """Leave out what happens inside."""
        pause, begin = Pause(), time.monotonic()
        yield pause
        pause.seconds = time.monotonic() - begin
        self.start += pause.seconds


@dataclass
class Pause:
    """How long a pause took, in seconds, once it is over."""

    seconds: float = 0.0


def position(state: TrainState) -> dict[str, Any]:
    """Where a run is, as every record of `metrics.jsonl` begins."""
    return {"step": state.step, "tokens": state.tokens, "seconds": round(state.seconds, 3)}


def _check_finite(loss: Any, norm: Tensor, step: int, lr: float) -> None:
    if math.isfinite(float(loss)) and math.isfinite(float(norm)):
        return
    raise TrainingError(
        f"the loss is not finite at step {step} (loss {float(loss)}, gradient norm {float(norm)}, "
        f"learning rate {lr:.2g}). The run stops at its last good checkpoint: resume it with a "
        "lower optimizer.lr, a longer schedule.warmup or a smaller train.clip; "
        "train.precision=fp32 shows whether precision is the cause."
    )


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Note SIGINT and SIGTERM, to stop after the step; a second Ctrl-C stops at once."""
    received = False

    def note(number: int, frame: Any) -> None:
        nonlocal received
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received = True

    try:
        before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which alone can handle signals
        yield lambda: False
        return
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
