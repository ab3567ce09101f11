"""Runs with a budget of time: they end with a checkpoint wherever the time is used up."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import VOCABULARY, small_model
from training import plan

from trivium.data import RowBatch
from trivium.objectives import Causal
from trivium.optim.optimizers import adamw, remember_peaks
from trivium.train.checkpoint import TrainState
from trivium.train.feed import RowFeed
from trivium.train.loop import Evaluation, train


class RandomRows:
    length = 11

    def __len__(self) -> int:
        return 23

    def take(self, indices, *, with_documents: bool = False) -> RowBatch:
        ids = np.random.default_rng(0).integers(1, VOCABULARY, (23, self.length))
        return RowBatch(ids[indices], np.full(len(indices), self.length))


class Clock:
    """Seconds that pass where it is said so, and a little whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.02
        return self.now


class Watch:
    """Evaluations that take `seconds`; notes at which steps what happened."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds, self.clock, self.evaluations, self.saved = seconds, clock, [], []
        self.step = 0

    def logged(self, record, progress) -> None:
        self.step = record["step"]

    def evaluate(self, state) -> Evaluation:
        self.clock.now += self.seconds
        return Evaluation({"valid_loss": 1.0})

    def evaluated(self, record) -> None:
        self.evaluations.append(record["step"])

    def save(self, state) -> None:
        self.saved.append(state.step)


@pytest.mark.parametrize("evaluation", [0.0, 1.5])
def test_the_last_step_is_saved_even_if_an_evaluation_used_up_the_time(evaluation, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("trivium.train.loop.time", clock)
    model = small_model("gpt2")
    optimizers = adamw(model, lr=1e-3)
    remember_peaks(optimizers)
    limits = plan(steps=None, minutes=1.0 / 60.0, started=0.0, eval_every=3, save_every=10**9)
    feed = RowFeed(Causal(), RandomRows(), seed=0, rows_per_step=2, micro_batch=2)
    watch = Watch(evaluation, clock)
    state = train(model, feed, optimizers, limits, TrainState(), watch)
    assert watch.saved == [state.step]
    assert watch.evaluations[-1] == state.step
    if evaluation:
        assert state.step == 3
