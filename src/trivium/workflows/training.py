"""One sitting of a run: what stands around the loop, whatever is trained and on what."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from trivium.inference.saved import SOURCE_TOKENIZER
from trivium.interop.settings import FILES
from trivium.models import LanguageModule
from trivium.optim.optimizers import load_state_tensors
from trivium.train.checkpoint import (
    TrainState,
    last_good_checkpoint,
    load_state,
    load_tensors,
    save_checkpoint,
)
from trivium.train.feed import Feed
from trivium.train.loop import Evaluation, Plan, train
from trivium.train.progress import ProgressLine, TrainingTable
from trivium.train.run import RunFolder
from trivium.train.tracking import TensorBoard
from trivium.workflows.claim import Claim


@dataclass
class Training:
    """The loop with its run folder: it logs, evaluates, saves and resumes (`loop.Watcher`).

    Args:
        run: where everything is written.
        line: where progress is shown.
        model: trained in place.
        optimizers: their groups' peak rates noted.
        feed: the batches.
        plan: budget and rhythm.
        table: what is shown of records.
        evaluation: what is measured on held-out data, and whether that is enough.
        keep_checkpoints: how many stay.
        tensorboard: write events too.
    """

    run: RunFolder
    line: ProgressLine
    model: LanguageModule
    optimizers: list[torch.optim.Optimizer]
    feed: Feed
    plan: Plan
    table: Callable[[Callable[[float], float]], TrainingTable]
    evaluation: Callable[[TrainState], Evaluation]
    keep_checkpoints: int
    tensorboard: bool = False
    _shown: TrainingTable = field(init=False)
    _events: TensorBoard | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._shown = self.table(self._seconds_left)
        if self.tensorboard:
            self._events = TensorBoard(self.run.path / "tensorboard")

    def state(self, *, resume: bool, new: Callable[[], None]) -> TrainState:
        """The state of the last good checkpoint, or of a new run, for which `new` is called."""
        found = last_good_checkpoint(self.run.checkpoints, self.line.say) if resume else None
        if found is None:
            self.run.write_text(self.run.metrics, "")
            new()
            return TrainState()
        self.model.load_state_dict(load_tensors(found / "model.safetensors"))
        moments = load_tensors(found / "optimizer.safetensors")
        load_state_tensors(self.optimizers, self.model, moments)
        state = load_state(found)
        self.run.rewind_metrics(state.step)
        self.line.say(f"resuming   at step {state.step:,} from {found}")
        return state

    def go(self, state: TrainState, claim: Claim) -> TrainState:
        """Train to the end of the budget."""
        claim.began = True
        self._began = time.monotonic(), self._done_before(state)
        try:
            return train(self.model, self.feed, self.optimizers, self.plan, state, self)
        finally:
            if self._events is not None:
                self._events.close()

    def _done_before(self, state: TrainState) -> float:
        """Progress at the start of this sitting."""
        if self.plan.steps is not None:
            return state.step / self.plan.steps
        assert self.plan.minutes is not None
        if state.began is None:
            return 0.0
        return (state.seconds - state.began) / (60.0 * self.plan.minutes - state.began)

    def _seconds_left(self, progress: float) -> float:
        """Seconds to the end of the budget at the speed of this sitting."""
        since, before = self._began
        done = progress - before
        return (time.monotonic() - since) / done * (1.0 - progress) if done > 0 else 0.0

    def logged(self, record: dict[str, Any], progress: float) -> None:
        """Write the record and rewrite the live line."""
        self._write(record)
        self._shown.logged(record, progress)

    def evaluate(self, state: TrainState) -> Evaluation:
        """Figures on held-out data."""
        self.line.update("evaluating")
        return self.evaluation(state)

    def evaluated(self, record: dict[str, Any]) -> None:
        """Write the record and add a row to the table."""
        self._write(record)
        self._shown.evaluated(record)

    def _write(self, record: dict[str, Any]) -> None:
        self.run.append_metrics(record)
        if self._events is not None:
            self._events.write(record)

    def save(self, state: TrainState) -> None:
        """Write a checkpoint."""
        self.line.update("saving")
        save_checkpoint(
            self.run.checkpoints,
            self.model,
            self.optimizers,
            state,
            spec=self.model.spec.to_dict(),
            tokenizer_file=self.run.tokenizer,
            keep=self.keep_checkpoints,
            settings_files=[self.run.path / name for name in (*FILES, SOURCE_TOKENIZER)],
        )
