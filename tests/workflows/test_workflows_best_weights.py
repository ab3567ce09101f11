"""Runs that end with the weights of their lowest validation loss."""

from __future__ import annotations

import torch
from run_settings import quiet, settings
from safetensors.torch import load_file

from trivium import load
from trivium.workflows.training import pretrain


def test_a_second_pass_ends_with_its_best_weights_and_stops_by_patience(text, tmp_path):
    train = {"steps": 60, "batch_tokens": 8192, "log_every": 1, "eval_every": 1, "eval_tokens": 64}
    changes = settings(**train, save_every=1, keep_checkpoints="all", patience=2)
    changes["optimizer"] = {"lr": 0.5}  # more than it bears: the last weights are not the best
    run = pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=quiet())
    losses = {r["step"]: r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r}
    first_pass = run.read_facts()["train_tokens"] / 8192
    later = {step: loss for step, loss in losses.items() if step > first_pass}
    best = min(later, key=later.__getitem__)
    assert 1 <= first_pass < best == len(losses) - 2
    kept = load(run.checkpoints / f"step-{best:08}").module.state_dict()
    assert all(torch.equal(w, kept[name]) for name, w in load_file(run.weights).items())


def test_the_best_generator_and_discriminator_are_of_one_step(text, tmp_path):
    keys = {"generator_size": 0.5, "sharing": "gradient-disentangled"}
    train = {"steps": 4, "eval_every": 1, "save_every": 1, "eval_tokens": 64, "log_every": 1}
    changes = settings(**train, keep_checkpoints="all", keep_best=True)
    changes |= {"objective": {"kind": "replaced-token", **keys}, "optimizer": {"lr": 0.5}}
    out = tmp_path / "run"
    run = pretrain("deberta-v3-tiny", data=text, out=out, changes=changes, console=quiet())
    losses = {r["step"]: r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r}
    best = min(losses, key=losses.__getitem__)
    checkpoint = run.checkpoints / f"step-{best:08}"
    torch.testing.assert_close(
        load(checkpoint).module.state_dict(), load_file(run.weights), rtol=0, atol=0
    )
    kept = load_file(checkpoint / "model.safetensors")
    beside = load_file(run.path / "generator" / "model.safetensors")
    assert torch.equal(kept["generator.tokens.weight"], beside["tokens.weight"])
