"""A training step never makes the host wait for the device, whose numbers are read a step late."""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter

import numpy as np
import pytest
import torch
from step_events import CHANGES, Events
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trivium.errors import TrainingError
from trivium.plan.forecast import build_trainer_without_data
from trivium.presets import presets
from trivium.train import trainer as trainer_module
from trivium.train.recipe_loading import load_recipe
from trivium.train.trainer import StepMetrics, Trainer, TrainState

# Data-dependent shapes and numbers that the host reads; a mask of an index is a hidden `nonzero`.
READ = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "bincount")
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")


class HostReads(TorchDispatchMode):
    """Counts the places that wait for numbers of the device."""

    def __init__(self):
        super().__init__()
        self.places = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        masked = name in INDEXED and any(
            one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]
        )
        sized = name == "repeat_interleave" and (kwargs or {}).get("output_size") is None
        if masked or sized or name in READ:
            self.add(name)
        return func(*args, **(kwargs or {}))

    def add(self, name):
        """Count a place; in the backward pass it is that of the loss."""
        frames = [each for each in traceback.extract_stack() if "trivium" in each.filename]
        self.places[f"{name}: {frames[-1]}"] += 1


class ListReads(TorchFunctionMode):
    """Adds what copies a whole tensor to the host."""

    def __init__(self, reads):
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu):
            self.reads.add(func.__name__)
        return func(*args, **(kwargs or {}))


# ELMo reads the characters of each distinct word of a batch, whose number the host must know.
# PyTorch's recurrent layers want the lengths of padded texts on the host. Layers of experts split
# tokens by the number that each expert gets.
READ_BY_HOST = {"elmo-tiny", "bahdanau-tiny", "mixtral-tiny", "deepseek-v2-tiny",
                "deepseek-v3-tiny"}  # fmt: skip
FAMILIES = [name for name in presets if name.endswith("-tiny") and name not in READ_BY_HOST]
# Translators, which are pretrained here as BART is.
TRANSLATORS = {"transformer-tiny", "marian-tiny"}


def unpadded(batch):
    return batch


def padded(batch):
    """The batch whose last columns are padding in some rows."""
    micro_batches = []
    for one in batch.micro_batches:
        mask = np.ones_like(one.input_ids)
        mask[:-1, -3:] = 0
        micro_batches.append(dataclasses.replace(one, attention_mask=mask))
    return dataclasses.replace(batch, micro_batches=tuple(micro_batches))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_reads_no_number_of_the_device(name, optimizer):
    objective = {"objective": {"kind": "denoising"}} if name in TRANSLATORS else {}
    recipe = load_recipe(name, {**CHANGES, **objective, "optimizer": {"kind": optimizer}})
    trainer, _ = build_trainer_without_data(recipe)
    trainer.train_step.train()
    for pad in (unpadded, padded) if trainer.train_step.model.spec.stacks else (unpadded,):
        for number in (0, 1):  # constants are made once
            with HostReads() as reads, ListReads(reads):
                batch = pad(trainer.loader.step(number))
                numbers = StepMetrics(*trainer._take_step(batch, TrainState(step=number)))
        assert not reads.places
        losses, norm = numbers.read()
        assert all(map(torch.isfinite, losses.values()))
        assert 0 < norm < float("inf")


def run(name="gpt2-tiny"):
    """The events of a run of nine steps, and its weights."""
    train = {**CHANGES["train"], "log_every": 2, "eval_every": 5, "save_every": 4}
    trainer, _ = build_trainer_without_data(load_recipe(name, {**CHANGES, "train": train}))
    callback = Events(trainer)
    try:
        trainer.train(callback.state)
    except TrainingError as error:
        callback.events.append(("error", str(error)))
    return callback.events, trainer.train_step.state_dict()


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "t5-tiny"])
def test_numbers_that_are_read_late_are_the_same(name, monkeypatch):
    events, weights = run(name)
    monkeypatch.setattr(Trainer, "_reads_losses_late", True)
    late, same = run(name)
    for key, weight in weights.items():
        assert torch.equal(same[key], weight), key
    assert [one for one in late if one[0] != "queued"] == [
        one for one in events if one[0] != "queued"
    ]
    order = [one[:2] for one in late]
    # A log line waits for the next step, but for steps that are evaluated or saved.
    assert order[0][0] == "start"
    assert order[1:4] == [("queued", 1), ("queued", 2), ("queued", 3)]
    assert order[4:7] == [("log", 2), ("queued", 4), ("log", 4)]
    assert order[-5:] == [
        ("log", 9), ("measure", 9), ("evaluate", 9), ("save", "step-00000009"), ("end", type(None)),
    ]  # fmt: skip


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("bad", [3, 5, 9])
def test_a_loss_that_is_not_finite_is_named_with_its_step(late, bad, monkeypatch):
    original = trainer_module.forward_backward

    def spoiled(trainer, batch, step):
        losses = original(trainer, batch, step)
        return {term: loss * (torch.nan if step == bad - 1 else 1.0)
                for term, loss in losses.items()}  # fmt: skip

    monkeypatch.setattr(trainer_module, "forward_backward", spoiled)
    monkeypatch.setattr(Trainer, "_reads_losses_late", late)
    events, _ = run()
    assert events[-1][0] == "error"
    assert f"not finite at step {bad} " in events[-1][1]
    assert events[-2] == ("end", TrainingError)
    logged = [one[1] for one in events if one[0] == "log"]
    assert logged == [step for step in (2, 4, 6, 8) if step < bad]
    saved = [one[1] for one in events if one[0] == "save"]
    assert saved == [f"step-{n:08}" for n in (4, 8) if n < bad]
