"""Small runs on random tokens, and hooks that keep the order of what happens in them."""

from __future__ import annotations

from typing import Any

from trivium.train.trainer import Hooks

CHANGES: dict[str, Any] = {
    "tokenizer": {"vocab_size": 300},
    "data": {"length": 16},
    "train": {"steps": 9, "batch_tokens": 64, "micro_batch_tokens": 32, "device": "cpu",
              "precision": "fp32"},
}  # fmt: skip


class Events(Hooks):
    """Hooks that keep the order of what happens, without what a clock decides."""

    def __init__(self):
        self.events = []

    def step(self, number, progress):
        self.events.append(("queued", number))

    def log(self, record, progress):
        kept = {name: record[name] for name in record.keys() - {"seconds", "tokens_per_second"}}
        self.events.append(("log", record["step"], kept, progress))

    def evaluate(self, trainer, state):
        self.events.append(("evaluate", state.step))
        return {"valid_loss": 1.0}, False

    def save(self, state):
        self.events.append(("save", state.step, list(state.last_losses)))
