"""Plans and batches for tests that train a little."""

from __future__ import annotations

import time
from typing import Any

import torch

from trivium.data import Batch
from trivium.objectives import Objective
from trivium.train.feed import Part, StepBatch
from trivium.train.loop import Plan


def plan(**changes: Any) -> Plan:
    """One step in float32 at a constant rate, unless `changes` say otherwise."""
    settings: dict[str, Any] = {
        "seed": 0,
        "precision": torch.float32,
        "device": torch.device("cpu"),
        "steps": 1,
        "minutes": None,
        "started": time.monotonic(),
        "schedule": "constant",
        "warmup": 0,
        "decay": 0.0,
        "final": 1.0,
        "clip": 1.0,
        "log_every": 1,
        "eval_every": 1,
        "save_every": 1,
    }
    return Plan(**settings | changes)


def step_batch(objective: Objective, batch: Batch, micro_batch: int) -> StepBatch:
    """A batch as the loop takes it, in micro-batches of so many rows."""
    starts = range(0, batch.num_rows, micro_batch)
    parts = tuple(Part(objective, batch.rows(start, start + micro_batch)) for start in starts)
    return StepBatch(parts, batch.input_ids.size)
