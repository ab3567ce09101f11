"""Training in float16: the steps are those of `torch.amp.GradScaler`, and nearly of float32."""

from __future__ import annotations

import pytest
import torch
from batches import CPU, Records, row_stream
from small_models import random_ids, small_model
from torch import nn

from trivium.errors import RecipeError, TrainingError
from trivium.models import build
from trivium.nn.loss import linear_cross_entropy
from trivium.objectives import to_device
from trivium.objectives.causal import Causal
from trivium.presets import presets
from trivium.train import loss_scale
from trivium.train.hardware import choose_precision
from trivium.train.loader import Loader
from trivium.train.loss_scale import LossScale
from trivium.train.optimizers.adamw import AdamW
from trivium.train.optimizers.muon import Muon
from trivium.train.recipe_loading import load_recipe
from trivium.train.train_config import TrainConfig
from trivium.train.trainer import Trainer, TrainState, TrainStep

STEPS, CLIP, LR = 9, 0.7, 0.003
ADAMW, MUON = AdamW(lr=LR, weight_decay=0.01), Muon(lr=LR, weight_decay=0.01)
# Some steps overflow until the factor is small enough.
LARGE = 2.0**25


def loader():
    return Loader([row_stream(Causal())], [1.0], seed=1, micro_batch_tokens=33)


def trained(precision, config=None, *, first=LARGE, steps=STEPS, records=None):
    """A model after some steps of the trainer, and the state of the run."""
    model = small_model("llama")
    train = {"steps": steps, "log_every": 1, "eval_every": 99, "save_every": 99, "clip": CLIP}
    schedule = {"kind": "constant", "warmup": 0}
    recipe = load_recipe("gpt2-tiny", {"train": train, "schedule": schedule})
    config = (config or ADAMW).with_default_learning_rates(LR, 1.0)
    recipe = recipe.replace(optimizer=config)
    optimizers = config.build(model, precision)
    trainer = Trainer(
        recipe,
        TrainStep(model),
        loader(),
        optimizers,
        CPU,
        precision,
        callbacks=[records or Records()],
    )
    state = trainer.train(TrainState(loss_scale=LossScale(first)))
    return model, state


def trained_by_pytorch(scaler):
    """The same model after the same steps of a loop with PyTorch's `GradScaler`."""
    model = small_model("llama")
    [optimizer] = ADAMW.build(model)
    for number in range(STEPS):
        batch = loader().step(number)
        [count] = batch.loss_denominators.values()
        for micro_batch in batch.micro_batches:
            with torch.autocast("cpu", torch.float16):
                losses = Causal().loss(model, to_device(micro_batch, CPU))
            scaler.scale(losses["loss"] / count).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model


def distance(model, other):
    """The distance of the weights of two models, as a share of how far training moves them."""
    start = small_model("llama").state_dict()
    pairs = [
        (model.state_dict()[name], other.state_dict()[name], one) for name, one in start.items()
    ]
    between = sum((a - b).square().sum() for a, b, _ in pairs)
    moved = sum((b - one).square().sum() for _, b, one in pairs)
    return float((between / moved).sqrt())


def test_steps_are_those_of_a_loop_with_grad_scaler(monkeypatch):
    monkeypatch.setattr(loss_scale, "_GROWTH_INTERVAL", 3)
    records = Records()
    model, state = trained(torch.float16, records=records)
    scaler = torch.amp.GradScaler("cpu", init_scale=LARGE, growth_interval=3)
    expected = trained_by_pytorch(scaler)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, expected.state_dict()[name], rtol=1e-6, atol=1e-7)
    assert state.loss_scale is not None
    assert state.loss_scale.factor == scaler.get_scale() < LARGE
    assert state.loss_scale.steps == scaler.state_dict()["_growth_tracker"]
    assert 0 < state.skipped_steps < STEPS
    assert [one["skipped_steps"] for one in records.records][:2] == [1, 2]
    assert records.records[-1]["loss_scale"] == state.loss_scale.factor


def test_the_factor_follows_that_of_grad_scaler(monkeypatch):
    monkeypatch.setattr(loss_scale, "_GROWTH_INTERVAL", 3)
    scale = LossScale()
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight])
    for overflowed in map(int, "0001000000101111000000000000"):
        assert scale.factor == scaler.get_scale()
        scaler.scale(weight * (torch.inf if overflowed else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scale.update(overflowed=bool(overflowed))


@pytest.mark.parametrize("config", [ADAMW, MUON], ids=lambda one: one.kind)
def test_weights_are_nearly_those_of_float32(config):
    half, state = trained(torch.float16, config, first=65536.0)
    single, _ = trained(torch.float32, config)
    assert state.skipped_steps == 0
    assert 0 < distance(half, single) < 0.1


@pytest.mark.parametrize("config", [ADAMW, MUON], ids=lambda one: one.kind)
def test_an_overflow_in_one_weight_skips_the_step_of_all(config):
    """Also where one optimizer has none of the gradients that overflow."""
    records = Records()
    model, state = trained(torch.float16, config, steps=1, records=records)
    assert state.skipped_steps == records.records[0]["skipped_steps"] == 1
    assert records.records[0]["train_loss"] > 0
    for name, weight in small_model("llama").state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


def test_a_run_whose_gradients_always_overflow_ends():
    class Overflows(Causal):
        kind: None = None  # type: ignore[assignment]

        def loss(self, model, batch):
            [loss] = super().loss(model, batch).values()
            loss.register_hook(lambda gradient: gradient * torch.inf)
            return {"loss": loss * 1.0}

    model, config = small_model("llama"), ADAMW
    train = {"steps": 99, "eval_every": 99, "save_every": 99}
    recipe = load_recipe("gpt2-tiny", {"train": train, "optimizer": {"lr": LR}})
    stream = Loader([row_stream(Overflows())], [1.0], seed=1, micro_batch_tokens=99)
    trainer = Trainer(recipe, TrainStep(model), stream, config.build(model), CPU, torch.float16)
    with pytest.raises(TrainingError, match=r"overflow float16 at step 30, .*precision=fp32"):
        trainer.train(TrainState())


LSTMS = {"lstm-tiny", "bilstm-tiny"}
"""Models of PyTorch's LSTM, which has no float16 on most CPUs."""


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("name", [name for name in presets if name.endswith("-tiny")])
def test_a_family_learns_in_float16(name):
    ids = random_ids(2, 16)
    spec = presets[name].replace(vocab_size=int(ids.max()) + 1)
    if name in LSTMS:
        with pytest.raises(RecipeError, match=r"fp16.* LSTMs"):
            choose_precision("fp16", CPU, build(spec), {})
        return
    model, gradients = build(spec, seed=0).eval(), []
    real = torch.arange(16) < torch.tensor([[16], [11]])
    inputs = {"input_ids": ids, "attention_mask": real.long()}
    if model.spec.family == "encoder-decoder":
        inputs["decoder_input_ids"] = ids
    has_head = any(head.kind in ("lm", "mlm") for head in model.spec.heads)
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=enabled):
            hidden = model(**inputs)
            loss = (
                model.lm_loss(hidden.flatten(0, 1), ids.flatten())
                if has_head
                else hidden.square().sum()
            )
        (loss * (4096.0 / ids.numel())).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    between = sum((a - b).square().sum() for a, b in zip(*gradients, strict=True))
    assert 0 < (between / sum(one.square().sum() for one in gradients[0])).sqrt() < 0.03


def test_the_loss_of_a_vocabulary_takes_a_factor_beyond_float16():
    """The largest number of float16 is 65,504."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((5, 11), (43, 11))]
    targets, gradients = torch.arange(5), []
    for dtype in (torch.float32, torch.float16):
        features, weight = (one.clone().requires_grad_() for one in start)
        with torch.autocast("cpu", dtype, enabled=dtype is torch.float16):
            loss = linear_cross_entropy(features, weight, None, targets)
        (loss * 2.0**20).backward()
        gradients.append((features.grad, weight.grad))
    for single, half in zip(*gradients, strict=True):
        torch.testing.assert_close(half, single, rtol=0.01, atol=0.01 * single.abs().max().item())


def test_fp8_is_refused_by_name():
    with pytest.raises(RecipeError, match="fp8 is not supported"):
        TrainConfig.from_tree({"precision": "fp8"})
