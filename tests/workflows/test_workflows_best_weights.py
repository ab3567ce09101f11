"""Runs that end with the weights of their lowest validation loss."""

from __future__ import annotations

import json
import math
import shutil
import tomllib

import pytest
import torch
from run_settings import quiet, settings
from safetensors.torch import load_file

from trivium import Callback, load
from trivium.train.run_folder import RunFolder
from trivium.train.trainer import Trainer
from trivium.workflows.training import pretrain


@pytest.mark.parametrize("patience", [None, 2])
def test_a_run_ends_with_its_best_weights_and_stops_by_patience(patience, text, tmp_path):
    """Of the evaluations after the first pass over its text; where it has patience, of all."""
    train = {"steps": 6 if patience is None else 60, "batch_tokens": 8192, "log_every": 1}
    train |= {"eval_every": 1, "eval_tokens": 64, "save_every": 1, "patience": patience}
    changes = settings(**train, keep_checkpoints="all")
    changes["optimizer"] = {"lr": 0.5}  # more than it bears: the last weights are not the best
    run = pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=quiet())
    losses = {r["step"]: r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r}
    first_pass = math.ceil(run.read_metadata()["train_tokens"] / 8192)
    assert 1 <= first_pass < 4
    compared = {s: loss for s, loss in losses.items() if patience or s > first_pass}
    best = min(compared, key=compared.__getitem__)
    assert len(losses) == (best + patience if patience else 6)
    kept = load(run.checkpoints / f"step-{best:08}").module.state_dict()
    assert all(torch.equal(w, kept[name]) for name, w in load_file(run.weights).items())


@pytest.mark.parametrize("decay", [None, 0.1])
def test_weights_decay_more_from_the_second_pass_on_unless_the_decay_is_set(
    decay, text, tmp_path, monkeypatch
):
    found = []
    take_step = Trainer._take_step

    def noted(trainer, batch, state):
        decays = {g["weight_decay"] for o in trainer.optimizers for g in o.param_groups}
        found.append((state.step, max(decays), trainer.loader.steps_per_epoch()))
        return take_step(trainer, batch, state)

    monkeypatch.setattr(Trainer, "_take_step", noted)
    data = tmp_path / "text.txt"
    data.write_text(text.read_text()[:30_000])
    train = {"steps": 4, "batch_tokens": 2048, "micro_batch_tokens": 2048}
    changes = settings(**train) | {"optimizer": {"weight_decay": decay}}
    first = pretrain("gpt2-tiny", data=data, out=tmp_path / "a", changes=changes, console=quiet())
    del changes["tokenizer"]  # trained weights keep theirs, and what they know
    recipe = {"model": {"init_from": str(first.path)}, "objective": {"kind": "causal"}}
    pretrain(recipe, data=data, out=tmp_path / "b", changes=changes, console=quiet())
    (*_, steps) = found[0]
    rate = tomllib.loads(first.recipe.read_text())["optimizer"]["lr"]
    more = decay or 1 / (rate * 100)  # fewer steps than a hundred are no mean
    a_run = [(decay or 0.01) if step < steps else pytest.approx(more) for step, *_ in found]
    half = len(found) // 2
    assert found[half][0] == 0
    assert half == 4 > steps
    assert [one[1] for one in found[:half]] == a_run[:half]
    assert {one[1] for one in found[half:]} == {decay or 0.01}


def test_weights_that_fill_masks_do_not_decay_more(text, tmp_path, monkeypatch):
    """Every pass has masks of its own: 1 MB five times was worse by 0.37 nats so."""
    monkeypatch.setattr("trivium.train.trainer.fit_weight_decay_to_epoch", None)  # not to be called
    changes = settings(steps=4, batch_tokens=8192, micro_batch_tokens=8192)
    pretrain("bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=quiet())


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


def best_weights(run, step):
    """The best weights that were saved after a step."""
    return load_file(run.best_weights_path(step) / "model.safetensors")


class Crash(Callback):
    """Fails at the evaluation of one step, after its weights are kept as the best."""

    def __init__(self, step):
        self.step = step

    def on_evaluate(self, record, lm):
        if record["step"] == self.step:
            raise ZeroDivisionError


@pytest.mark.parametrize("kind", ["text", "labelled"])
def test_best_weights_of_an_abandoned_history_are_not_used(kind, text, reviews, tmp_path):
    """A run that crashed after a new best one, and went on with another rate from before it."""
    train = {"steps": 12, "eval_every": 2, "save_every": 6, "log_every": 1, "device": "cpu"}
    if kind == "text":
        changes = settings(**train, keep_best=True)
        start = {"recipe": "gpt2-tiny", "data": text}
    else:
        tree = {"model": {"preset": "bert-tiny"}, "objective": {"kind": "classification"}}
        changes, start = {"train": train}, {"recipe": tree, "data": reviews}
    changes["optimizer"] = {"lr": 2e-4}
    changes["schedule"] = {"kind": "constant", "warmup": 0}
    options = {"out": tmp_path / "run", "console": quiet()}
    with pytest.raises(ZeroDivisionError):
        pretrain(**start, changes=changes, callbacks=[Crash(8)], **options)
    run = RunFolder(options["out"])
    abandoned = best_weights(run, 8) if run.best_weights_path(8).is_dir() else {}
    if kind == "text":
        assert abandoned
    run = pretrain("", resume=True, changes=["optimizer.lr=10.0"], **options)
    state = json.loads((run.checkpoints / "step-00000012" / "state.json").read_text())
    losses = {r["step"]: r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r}
    if kind == "text":
        assert state["best_step"] == min(losses, key=losses.__getitem__) == 6
    kept, final = best_weights(run, state["best_step"]), load_file(run.weights)
    assert all(torch.equal(final[name], kept[name]) for name in final)
    if abandoned:
        assert not all(torch.equal(final[name], abandoned[name]) for name in final)
    assert [file.name for file in run.checkpoints.glob("best*")] == [
        run.best_weights_path(state["best_step"]).name
    ]


def test_best_weights_that_are_missing_are_chosen_anew(text, tmp_path):
    """Of the newest checkpoint that is whole: the weights that it knows may be gone."""
    changes = settings(steps=6, eval_every=2, save_every=2, keep_best=True)
    options = {"out": tmp_path / "run", "console": quiet()}
    run = pretrain("gpt2-tiny", data=text, changes=changes, **options)
    for folder in run.checkpoints.glob("best*"):
        shutil.rmtree(folder)
    console = quiet()
    options["console"] = console
    pretrain("", resume=True, changes=["train.steps=8"], **options)
    assert "are missing: the best ones are chosen" in console.file.getvalue()
    state = json.loads((run.checkpoints / "step-00000008" / "state.json").read_text())
    assert state["best_step"] == 8
    kept, final = best_weights(run, 8), load_file(run.weights)
    assert all(torch.equal(final[name], kept[name]) for name in final)
