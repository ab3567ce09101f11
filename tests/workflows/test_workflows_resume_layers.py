"""What layers learn at different times, or read from a tokenizer, survives an interruption."""

from __future__ import annotations

import itertools

import torch
from run_settings import assert_equal_runs, interrupt_and_resume, quiet, settings
from safetensors.torch import load_file

from trivium import load
from trivium.train.checkpoint import checkpoints
from trivium.workflows.training import finetune, pretrain


def test_a_run_that_unfreezes_layers_resumes_bit_equal(reviews, tmp_path, monkeypatch):
    """Three stages: last layer and head; from step 2 on both layers; from step 4 on everything."""
    train = settings(steps=6, save_every=1, eval_every=6, log_every=1)["train"]
    train |= {"gradual_unfreezing": 2 / 3, "keep_checkpoints": "all", "batch_examples": 11}
    del train["batch_tokens"], train["eval_tokens"]
    optimizer = {"layer_decay": 1 / 2.6, "weight_decay": 0.1}

    def start(out, resume):
        changes = {"train": train, "optimizer": optimizer, "tokenizer": {"vocab_size": 300}}
        return finetune(
            "classification", model="" if resume else "lstm-tiny", data=() if resume else reviews,
            out=out, changes=() if resume else changes, resume=resume, console=quiet(),
        )  # fmt: skip

    whole = start(tmp_path / "whole", False)
    files = [one / "model.safetensors" for one in reversed([*checkpoints(whole.checkpoints)])]
    states = [load_file(file) for file in files]
    moved = [
        {name for name, weight in before.items() if not torch.equal(weight, after[name])}
        for before, after in itertools.pairwise(states)
    ]
    layers = [{name for name in states[0] if f"_l{number}" in name} for number in (0, 1)]
    top = layers[1] | {name for name in states[0] if "project" in name or "heads" in name}
    stages = [top, *[top | layers[0]] * 2, *[{*states[0]}] * 2]  # of the steps after the first
    assert moved == stages
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 1, 3), whole)


def test_elmo_resumes_bit_equal_and_a_task_learns_its_mix(text, reviews, tmp_path, monkeypatch):
    """The table of characters is saved with the weights, and the mean of checkpoints keeps it."""
    changes = settings(steps=6, eval_every=6)

    def start(out, resume):
        changed, data = ((), ()) if resume else (changes, text)
        return pretrain(
            "elmo-tiny", data=data, out=out, resume=resume, changes=changed, console=quiet()
        )

    whole = start(tmp_path / "whole", False)
    assert_equal_runs(interrupt_and_resume(monkeypatch, start, tmp_path / "run", 3), whole)
    train = {"epochs": 4, "eval_every": 1, "average": 3, "keep_checkpoints": 3, "device": "cpu"}
    task = finetune(
        "classification", model=whole.path, data=reviews, out=tmp_path / "task",
        changes={"train": train, "model": {"freeze": "body"}}, console=quiet(),
    )  # fmt: skip
    base, lm = load(whole.path), load(task.path)
    before, after = base.module.state_dict(), lm.module.state_dict()
    changed = {
        name for name in after if not torch.equal(after[name], before.get(name, after[name]))
    }
    assert not changed
    assert after["heads.scalar-mix.weights"].any()
    assert base.tokenizer is not None
    index = base.tokenizer.encode("a", add_special_tokens=False).ids[0]
    assert ord("a") in after["tokens.character_ids"][index]
    assert lm.embed(["a film"]).shape == (1, 2 * lm.spec.d_model)
