"""Steps of the trainer on a GPU: without waiting, in float16, and as on a CPU."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import small_model
from step_events import CHANGES, Events

from trivium.errors import TrainingError
from trivium.plan.forecast import build_trainer_without_data
from trivium.train import trainer as trainer_module
from trivium.train.optimizers import set_learning_rate
from trivium.train.optimizers.muon import MatrixMuon, Muon, orthogonalize
from trivium.train.recipe_loading import load_recipe
from trivium.train.trainer import StepMetrics, TrainState

pytestmark = pytest.mark.gpu
PRESETS = ["gpt2-tiny", "bert-tiny", "t5-tiny"]


def trainer_on(device, name, *, optimizer=None, **train):
    """The trainer of a preset on random tokens, and the `Events` that it calls."""
    train = {**CHANGES["train"], "device": device, "compile": False, **train}
    changes = {**CHANGES, "train": train, "optimizer": optimizer or {"kind": "adamw"}}
    trainer, _ = build_trainer_without_data(load_recipe(name, changes))
    return trainer, Events(trainer)


def logged(trainer, callback):
    """The log lines of a whole run by step."""
    trainer.train(TrainState())
    logs = [one for one in callback.events if one[0] == "log"]
    return {step: record for _, step, record in logs}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_step_never_waits_for_the_gpu(name, optimizer, compiled):
    keys = {"kind": optimizer, **({"compile": compiled} if optimizer == "muon" else {})}
    trainer, _ = trainer_on("cuda", name, optimizer=keys, precision="bf16", compile=compiled)
    trainer.train_step.train()
    batches = [trainer.loader.step(number) for number in range(6)]
    numbers = []
    for number, batch in enumerate(batches):
        # The first steps compile, allocate memory and make constants.
        torch.cuda.set_sync_debug_mode("error" if number > 2 else "default")
        try:
            set_learning_rate(trainer.optimizers, 0.5)
            numbers.append(StepMetrics(*trainer._take_step(batch, TrainState(step=number))))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for one in numbers:
        losses, norm = one.read()
        assert all(map(torch.isfinite, losses.values()))
        assert 0 < norm < math.inf


@pytest.mark.parametrize("name", PRESETS)
def test_log_lines_are_those_of_a_cpu(name):
    train = {"log_every": 2, "eval_every": 5, "save_every": 4}
    expected, found = (logged(*trainer_on(one, name, **train)) for one in ("cpu", "cuda"))
    assert found.keys() == expected.keys() == {2, 4, 6, 8, 9}
    for step, record in expected.items():
        for value in ("train_loss", "grad_norm", "lr", "tokens"):
            assert found[step][value] == pytest.approx(record[value], rel=2e-3), (step, value)


def test_a_loss_that_is_not_finite_is_named_with_its_step(monkeypatch):
    original = trainer_module.forward_backward

    def spoiled(trainer, batch, step):
        losses = original(trainer, batch, step)
        return {term: loss * (math.nan if step == 4 else 1.0) for term, loss in losses.items()}

    monkeypatch.setattr(trainer_module, "forward_backward", spoiled)
    trainer, callback = trainer_on("cuda", "gpt2-tiny", log_every=2, eval_every=9, save_every=9)
    with pytest.raises(TrainingError, match="not finite at step 5 "):
        trainer.train(TrainState())
    assert [one[1] for one in callback.events if one[0] == "log"] == [2, 4]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", PRESETS)
def test_float16_learns_as_float32(name, optimizer):
    train = {"log_every": 1, "eval_every": 9, "save_every": 9, "optimizer": optimizer}
    expected = logged(*trainer_on("cuda", name, precision="fp32", **train))
    half, callback = trainer_on("cuda", name, precision="fp16", **train)
    found = logged(half, callback)
    assert half.precision is torch.float16
    skipped = found[9]["skipped_steps"]
    assert skipped < 5
    for step, record in expected.items():
        loss = record["train_loss"]
        assert found[step]["train_loss"] == pytest.approx(loss, rel=0.01 + skipped, abs=0.05), step


def test_muon_takes_the_steps_of_a_cpu():
    models = [small_model("llama"), small_model("llama").cuda()]
    for model in models:
        optimizers = Muon(lr=1e-3).with_default_learning_rates(1e-3, 1.0).build(model)
        assert isinstance(optimizers[0], MatrixMuon)
        for number in range(3):
            for index, weight in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(97 * number + index)
                noise = torch.randn(weight.shape, generator=generator)
                weight.grad = noise.to(weight.device)
            for optimizer in optimizers:
                optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
def test_orthogonal_steps_are_those_of_a_cpu(precision):
    for shape in ((3, 64, 192), (2, 192, 64), (5, 128, 128)):
        matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        exact = orthogonalize(matrices.double())
        found = orthogonalize(matrices.to("cuda", precision)).double().cpu()
        error = (found - exact).norm() / exact.norm()
        assert error < (0.1 if precision is torch.bfloat16 else 1e-3)
