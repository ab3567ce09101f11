"""Small runs on random tokens, and a callback that keeps the order of what happens in them."""

from __future__ import annotations

from typing import Any

from trivium.train.callback import Callback
from trivium.train.trainer import TrainState

CHANGES: dict[str, Any] = {
    "tokenizer": {"vocab_size": 300},
    "data": {"length": 16},
    "train": {"steps": 9, "batch_tokens": 64, "micro_batch_tokens": 32, "device": "cpu",
              "precision": "fp32"},
}  # fmt: skip


class Events(Callback):
    """A callback that keeps the order of what happens, without what a clock decides.

    Every evaluation measures a loss of 1.
    """

    def __init__(self, trainer):
        self.events, self.state = [], TrainState()
        trainer.callbacks = [self]
        trainer.measure = self.measure

    def on_start(self, batch, lm):
        self.events.append(("start", batch.num_tokens))

    def on_step(self, step, progress):
        self.events.append(("queued", step, progress))

    def on_log(self, record):
        kept = {name: record[name] for name in record.keys() - {"seconds", "tokens_per_second"}}
        self.events.append(("log", record["step"], kept))

    def measure(self, trainer, state):
        self.events.append(("measure", state.step))
        return {"valid_loss": 1.0}

    def on_evaluate(self, record, lm):
        self.events.append(("evaluate", record["step"], record["valid_loss"]))

    def on_save(self, folder):
        self.events.append(("save", folder.name, list(self.state.last_losses)))

    def on_end(self, error):
        self.events.append(("end", type(error)))
