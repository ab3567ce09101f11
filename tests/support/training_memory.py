"""A program: the peak of PyTorch's memory in two steps of two micro-batches, and the plan's."""

from __future__ import annotations

import itertools
import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile

from trivium.models import build
from trivium.objectives.tensor_batch import TensorBatch, token_losses
from trivium.presets import presets
from trivium.train.memory import training_memory

ROWS, LENGTH = 4, 128


def train(spec) -> None:
    model = build(spec, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        for _ in range(2):
            ids = torch.randint(0, spec.vocab_size, (ROWS, LENGTH))
            batch = TensorBatch(
                label_positions=torch.arange(ROWS * LENGTH),
                targets=ids.flatten(),
                sequence_labels=None,
                inputs={"input_ids": ids},
            )
            token_losses(model, batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def peak(profiler: profile) -> int:
    """Bytes of all tensors, when they were most."""
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    sizes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in sizes), default=0)


def main() -> None:
    spec = presets[sys.argv[1]].with_dropout(0.0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(spec)
    measured = peak(profiler)
    planned = training_memory(spec, rows=ROWS, length=LENGTH, precision=torch.float32, device="cpu")
    print(json.dumps({"measured": measured, "planned": sum(planned.values())}))


if __name__ == "__main__":
    main()
