"""The training loop: one visible `for`, for every model and every objective.

Which rows make a step and what noise they get follows from (seed, step) alone, so that resuming
needs integers only. Losses are sums and counts: how a batch is split never changes the result.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from trivium.errors import TrainingError
from trivium.models import LanguageModule
from trivium.nn.loss import named_means
from trivium.objectives import to_device
from trivium.optim.optimizers import set_learning_rate
from trivium.optim.schedule import Kind, learning_rate_factor
from trivium.train.checkpoint import TrainState
from trivium.train.feed import Feed, StepBatch


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop (Ctrl-C or SIGTERM) and has saved."""


@dataclass(frozen=True)
class Plan:
    """How a run goes, all of it decided before the first step.

    Exactly one of `steps` and `minutes` is the budget; minutes count from `started`
    (`time.monotonic` seconds), and a resumed run goes on counting where it stopped.
    """

    seed: int
    precision: torch.dtype
    device: torch.device
    steps: int | None
    minutes: float | None
    started: float
    schedule: Kind
    warmup: float
    decay: float
    final: float
    clip: float
    log_every: int
    eval_every: int
    save_every: int


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: figures for `metrics.jsonl`, and whether training should end."""

    figures: dict[str, float] = field(default_factory=dict)
    enough: bool = False


class Watcher(Protocol):
    """What the loop tells the outside world, and asks of it."""

    def logged(self, record: dict[str, Any], progress: float) -> None:
        """A log line is due."""
        ...

    def evaluate(self, state: TrainState) -> Evaluation:
        """Figures on what is held out, none where nothing is; may note the best in the state."""
        ...

    def evaluated(self, record: dict[str, Any]) -> None:
        """An evaluation was made."""
        ...

    def save(self, state: TrainState) -> None:
        """A checkpoint is due."""
        ...


@dataclass(frozen=True)
class Clock:
    """Seconds since the command began, those of earlier sittings included."""

    started: float
    before: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self.before + time.monotonic() - self.started


def train(
    model: LanguageModule,
    feed: Feed,
    optimizers: list[torch.optim.Optimizer],
    plan: Plan,
    state: TrainState,
    watcher: Watcher,
) -> TrainState:
    """Train `model` in place until the plan's budget is used up or an evaluation found enough.

    Raises:
        TrainingError: a loss that is not finite; nothing after the last checkpoint is kept.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint was written.
    """
    clock, ending = Clock(plan.started, before=state.seconds), 0.0
    timer = StepTimer()
    window = _Window(state, plan.device)
    model.train()
    with _stop_signals() as stopped, _Batches(feed, state.step) as batches:
        if state.began is None:
            state.began = clock.seconds
        last = _progress(plan, state, clock.seconds + ending) >= 1.0
        while not last:
            progress = min(1.0, _progress(plan, state, clock.seconds + ending))
            factor = learning_rate_factor(
                plan.schedule,
                state.step,
                progress,
                warmup=plan.warmup,
                decay=plan.decay,
                final=plan.final,
            )
            lr = set_learning_rate(optimizers, factor)
            batch = batches.next()
            loss = forward_backward(model, batch, plan, state.step)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            if plan.device.type == "cpu":
                _check_finite(loss.sums.sum(), norm, state.step, lr)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            state.step += 1
            state.tokens += batch.num_tokens
            timer.tokens += batch.num_tokens
            window.add(loss)
            state.seconds = clock.seconds
            last = _progress(plan, state, clock.seconds + ending) >= 1.0
            if state.step % plan.log_every == 0 or last:
                _check_finite(window.sums.sum(), norm, state.step, lr)
                record = _position(state) | {
                    **named_means("train", loss.names, loss.weights, window.means()),
                    "lr": lr,
                    "grad_norm": float(norm),
                    "tokens_per_second": round(timer.rate(), 1),
                }
                window.clear()
                watcher.logged(record, _progress(plan, state, clock.seconds))
            if state.step % plan.eval_every == 0 or last:
                with timer.paused() as took:
                    found = watcher.evaluate(state)
                ending = took.seconds
                state.seconds = clock.seconds
                if found.figures:
                    watcher.evaluated(_position(state) | found.figures)
                model.train()
                # An evaluation may have used up the time: then this was the last step after all.
                last = last or found.enough or _progress(plan, state, clock.seconds) >= 1.0
            if state.step % plan.save_every == 0 or last or stopped():
                _check_finite(window.sums.sum(), norm, state.step, lr)
                window.note(state)
                with timer.paused():
                    watcher.save(state)
            if stopped() and not last:
                raise Interrupted
    return state


@dataclass(frozen=True)
class StepLoss:
    """The terms of one step's loss: sums [K] on the device, not waited for, and the rest."""

    sums: torch.Tensor
    counts: tuple[int, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...]


def forward_backward(model: LanguageModule, batch: StepBatch, plan: Plan, step: int) -> StepLoss:
    """Gradients of one step's mean loss, micro-batch by micro-batch.

    Every micro-batch is divided by the label count of the whole step, so that the sum of their
    gradients is the gradient of the full batch. Dropout is keyed by (seed, step, micro-batch).
    """
    counts = batch.counts
    sums = torch.zeros(len(counts), device=plan.device)
    names, weights = [""] * len(counts), [1.0] * len(counts)
    autocast = torch.autocast(
        plan.device.type, plan.precision, enabled=plan.precision is not torch.float32
    )
    for number, part in enumerate(batch.parts):
        torch.manual_seed(hash((plan.seed, step, number)))
        tensors = to_device(part.batch, plan.device)
        with autocast:
            loss = part.objective.loss(model, tensors)
        terms = loss.terms
        total = sum(term.weight * term.sum / max(n, 1) for term, n in zip(terms, counts))
        assert isinstance(total, torch.Tensor)
        total.backward()
        for place, term in enumerate(terms):
            sums[place] += term.sum.detach()
            names[place], weights[place] = term.name, term.weight
    return StepLoss(sums, counts, tuple(names), tuple(weights))


class _Window:
    """Losses since the last log line, term by term.

    Kept on the device in float64 and brought to the host only where they are written down.
    """

    def __init__(self, state: TrainState, device: torch.device) -> None:
        self.sums = torch.tensor(state.window_loss, dtype=torch.float64, device=device)
        self.counts = list(state.window_count)

    def add(self, loss: StepLoss) -> None:
        """Take the losses of a step."""
        if not self.counts:
            self.sums = torch.zeros_like(loss.sums, dtype=torch.float64)
            self.counts = [0] * len(loss.counts)
        self.sums += loss.sums
        self.counts = [a + b for a, b in zip(self.counts, loss.counts)]

    def means(self) -> list[float]:
        """Nats a label, term by term."""
        return [total / max(n, 1) for total, n in zip(self.sums.tolist(), self.counts)]

    def note(self, state: TrainState) -> None:
        """Write what has been added up into the state."""
        state.window_loss, state.window_count = self.sums.tolist(), list(self.counts)

    def clear(self) -> None:
        """Begin anew."""
        self.sums.zero_()
        self.counts = [0] * len(self.counts)


class _Batches:
    """The batches from one step on, each prepared while the one before it is computed."""

    def __init__(self, feed: Feed, step: int) -> None:
        self.feed, self.next_step = feed, step
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="prepare")

    def __enter__(self) -> _Batches:
        self.ahead = self.worker.submit(self.feed.step, self.next_step)
        return self

    def __exit__(self, *exception: object) -> None:
        self.worker.shutdown(wait=True, cancel_futures=True)

    def next(self) -> StepBatch:
        ready = self.ahead.result()
        self.next_step += 1
        self.ahead = self.worker.submit(self.feed.step, self.next_step)
        return ready


class StepTimer:
    """Tokens a second while stepping; evaluations and checkpoints do not count."""

    def __init__(self) -> None:
        self.tokens, self.start = 0, time.monotonic()

    def rate(self) -> float:
        """Tokens a second since the last call."""
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


def _progress(plan: Plan, state: TrainState, seconds: float) -> float:
    """Share of the budget used up, 0 to 1; what came before the first step does not count."""
    if plan.steps is not None:
        return state.step / plan.steps
    assert plan.minutes is not None
    assert state.began is not None
    left = 60.0 * plan.minutes - state.began
    return (seconds - state.began) / left if left > 0 else float(state.step > 0)


def _position(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "tokens": state.tokens, "seconds": round(state.seconds, 3)}


def _check_finite(loss: Any, norm: torch.Tensor, step: int, lr: float) -> None:
    if math.isfinite(float(loss)) and math.isfinite(float(norm)):
        return
    raise TrainingError(
        f"the loss is no longer finite at step {step} (loss {float(loss)}, gradient norm "
        f"{float(norm)}, learning rate {lr:.2g}). The run stops at its last good checkpoint: try "
        "a lower optimizer.lr, a longer schedule.warmup or a smaller train.clip, and go on with "
        "--resume; train.precision=fp32 tells whether precision is the cause."
    )


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Note SIGINT and SIGTERM instead of dying of them; a second Ctrl-C stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are not ours to take
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
