"""Training a part of a model: optimizers, their state on the disk, clipping, resuming."""

from __future__ import annotations

import json

import pytest
import torch
from small_models import inputs_for, random_ids, small_model

from trivium.adapt import LoRA, add_lora, freeze
from trivium.optim.optimizers import adamw, load_state_tensors, muon, state_tensors
from trivium.train.checkpoint import TrainState, load_tensors, save_checkpoint

LORA = LoRA(rank=3, dropout=0.2, targets=("attention",))


def prepared(name, what):
    model = small_model(name).train()
    if what == "lora":
        add_lora(model, LORA)
    else:
        freeze(model, what)
    return model


def optimizers_of(kind, model):
    if kind == "adamw":
        return adamw(model, lr=3e-3, weight_decay=0.1)
    matrices = [n for n, w in model.named_parameters() if ".layers." in n and w.ndim == 2]
    return muon(model, matrices, lr=3e-3, matrix_lr=0.02, weight_decay=0.1)


def step(model, name, optimizers, number):
    torch.manual_seed(number)
    ids = random_ids(3, 7, seed=number)
    hidden = model(**inputs_for(name, ids)).flatten(0, 1)
    model.vocabulary_loss(hidden, ids.flatten()).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return norm


def trained(model):
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


CASES = [
    ("bert", "lora"),
    ("llama", "lora"),
    ("bart", "lora"),
    ("gpt2", "layers:1"),
    ("bert", "embeddings"),
    ("t5", "encoder"),
    ("albert", "all-but-norms-and-biases"),
]
# Where no matrix is left, Muon has nothing to train.
WITH_MUON = [(*case, "muon") for case in CASES[:-1]]


@pytest.mark.parametrize(
    ("name", "what", "kind"), [*((*case, "adamw") for case in CASES), *WITH_MUON]
)
def test_optimizers_hold_state_of_what_is_trained_alone(name, what, kind):
    model = prepared(name, what)
    optimizers = optimizers_of(kind, model)
    before = {n: w.detach().clone() for n, w in model.named_parameters()}
    for number in range(3):
        step(model, name, optimizers, number)
    state = state_tensors(optimizers, model)
    # A head that takes no part in the loss is trained and never gets a gradient.
    idle = {n for n in trained(model) if n.startswith("heads.nsp")}
    assert {n.rpartition("/")[0] for n in state} == trained(model) - idle
    for n, weight in model.named_parameters():
        assert torch.equal(weight, before[n]) == (n not in trained(model) - idle), n


@pytest.mark.parametrize(("name", "what"), CASES)
def test_gradients_are_clipped_by_the_norm_of_what_is_trained(name, what):
    model = prepared(name, what)
    ids = random_ids(3, 7)
    hidden = model(**inputs_for(name, ids)).flatten(0, 1)
    model.vocabulary_loss(hidden, ids.flatten()).backward()
    gradients = [w.grad for w in model.parameters() if w.grad is not None]
    assert all(w.grad is None for w in model.parameters() if not w.requires_grad)
    norm = torch.stack([g.double().square().sum() for g in gradients]).sum().sqrt()
    found = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch.testing.assert_close(found.double(), norm, rtol=1e-5, atol=0.0)
    clipped = torch.stack([g.double().square().sum() for g in gradients]).sum().sqrt()
    assert float(clipped) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize(("name", "what"), [("llama", "lora"), ("bart", "layers:1")])
def test_going_on_from_a_checkpoint_is_bit_for_bit_the_same(name, what, kind, tmp_path):
    model = prepared(name, what)
    optimizers = optimizers_of(kind, model)
    for number in range(2):
        step(model, name, optimizers, number)
    folder = save_checkpoint(
        tmp_path,
        model,
        optimizers,
        TrainState(step=2),
        spec=model.spec.to_dict(),
        tokenizer_file=None,
        keep=1,
    )
    assert json.loads((folder / "state.json").read_text())["step"] == 2
    norms = [step(model, name, optimizers, number) for number in (2, 3)]

    again = prepared(name, what)
    others = optimizers_of(kind, again)
    again.load_state_dict(load_tensors(folder / "model.safetensors"))
    load_state_tensors(others, again, load_tensors(folder / "optimizer.safetensors"))
    assert [step(again, name, others, number) for number in (2, 3)] == norms
    for n, weight in again.named_parameters():
        assert torch.equal(weight, model.get_parameter(n)), n
    found, expected = state_tensors(others, again), state_tensors(optimizers, model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], value) for n, value in expected.items())


def test_optimizer_state_is_small():
    model = prepared("llama", "lora")
    optimizers = adamw(model, lr=1e-3)
    step(model, "llama", optimizers, 0)
    numbers = sum(v.numel() for n, v in state_tensors(optimizers, model).items() if "exp_" in n)
    assert numbers == 2 * sum(w.numel() for w in model.parameters() if w.requires_grad)
