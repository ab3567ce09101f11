"""Parameter groups, the steps they take, and their state going out and in."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import SPECS, random_ids, small_model

from trivium.optim import optimizers
from trivium.optim.optimizers import (
    adamw,
    load_state_tensors,
    muon,
    remember_peaks,
    set_learning_rate,
    state_tensors,
)

MATRICES = ("query", "key", "value", "output", "up", "down", "gate")


def matrices_of(model):
    names = [name for name, weight in model.named_parameters() if weight.ndim == 2]
    return [n for n in names if ".layers." in n and n.split(".")[-2] in MATRICES]


def make(kind, model):
    if kind == "adamw":
        return adamw(model, lr=3e-3, weight_decay=0.1)
    return muon(model, matrices_of(model), lr=3e-3, matrix_lr=0.02, weight_decay=0.1)


def step(model, optimizers, number):
    ids = random_ids(3, 13, seed=number)
    model.vocabulary_loss(model(ids).flatten(0, 1), ids.flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_weight_is_in_one_group_and_vectors_do_not_decay(name, kind):
    model = small_model(name)
    names = {id(weight): n for n, weight in model.named_parameters()}
    found = []
    for optimizer in make(kind, model):
        for group in optimizer.param_groups:
            for weight in group["params"]:
                found.append(names[id(weight)])
                expected = 0.1 if weight.ndim > 1 else 0.0
                assert group["weight_decay"] == expected, found[-1]
    assert sorted(found) == sorted(names.values())


def test_muon_takes_the_matrices_it_is_given_and_no_other():
    model = small_model("llama")
    first, rest = make("muon", model)
    assert isinstance(first, torch.optim.Muon)
    assert isinstance(rest, torch.optim.AdamW)
    names = {id(weight): n for n, weight in model.named_parameters()}
    taken = [names[id(w)] for group in first.param_groups for w in group["params"]]
    assert sorted(taken) == sorted(matrices_of(model))
    assert all(".layers." in name for name in taken)


def test_without_matrices_there_is_no_muon():
    model = small_model("gpt2")
    (only,) = muon(model, [], lr=3e-3, matrix_lr=0.02)
    assert isinstance(only, torch.optim.AdamW)
    trained = {id(weight) for group in only.param_groups for weight in group["params"]}
    assert trained == {id(weight) for weight in model.parameters()}


def test_frozen_weights_are_left_out():
    model = small_model("gpt2")
    model.tokens.requires_grad_(False)
    model.decoder.embedding.requires_grad_(False)
    names = {id(weight): n for n, weight in model.named_parameters()}
    groups = [group for optimizer in make("adamw", model) for group in optimizer.param_groups]
    taken = {names[id(weight)] for group in groups for weight in group["params"]}
    assert taken == {name for name in names.values() if ".layers." in name or ".norm." in name}


def test_adamw_is_the_papers_update():
    """Loshchilov and Hutter 2017, algorithm 2, in float64, over three steps."""
    module = torch.nn.Linear(5, 3).double()
    weight = module.weight.detach().clone()
    bias = module.bias.detach().clone()
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.98, 1e-8, 0.1
    (optimizer,) = adamw(module, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    first = {"w": 0.0, "b": 0.0}
    second = {"w": 0.0, "b": 0.0}
    for number in range(1, 4):
        gradients = {"w": torch.randn(3, 5).double(), "b": torch.randn(3).double()}
        module.weight.grad, module.bias.grad = gradients["w"].clone(), gradients["b"].clone()
        optimizer.step()
        for key, value, weight_decay in (("w", weight, decay), ("b", bias, 0.0)):
            gradient = gradients[key]
            first[key] = beta1 * first[key] + (1 - beta1) * gradient
            second[key] = beta2 * second[key] + (1 - beta2) * gradient**2
            step_size = first[key] / (1 - beta1**number)
            scale = (second[key] / (1 - beta2**number)).sqrt() + eps
            value -= lr * step_size / scale + lr * weight_decay * value
        torch.testing.assert_close(module.weight.detach(), weight, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(module.bias.detach(), bias, rtol=1e-9, atol=1e-12)


def test_muon_takes_an_orthogonal_step():
    """The first step of a matrix has singular values near 1 times the learning rate."""
    module = torch.nn.Linear(7, 5, bias=False)
    before = module.weight.detach().clone()
    optimizers = muon(module, ["weight"], lr=1.0, matrix_lr=0.02, weight_decay=0.0)
    module.weight.grad = torch.randn(5, 7)
    optimizers[0].step()
    values = torch.linalg.svdvals((module.weight.detach() - before) / 0.02)
    assert (values > 0.5).all()
    assert (values < 1.5).all()


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (64, 64)])
@pytest.mark.parametrize("has_bf16", [True, False])
def test_muon_takes_the_published_step(shape, has_bf16, monkeypatch):
    """Newton-Schulz of Jordan et al. 2024 in float64: to the rounding of bfloat16, or of float32.

    Nesterov's momentum of the first step is 0.05 g + 0.95 (0.05 g), a multiple of the gradient.
    """
    monkeypatch.setattr(optimizers, "_multiplies_bf16", lambda: has_bf16)
    module = torch.nn.Linear(shape[1], shape[0], bias=False)
    before = module.weight.detach().clone()
    gradient = torch.randn(shape)
    module.weight.grad = gradient.clone()
    first, *_ = muon(module, ["weight"], lr=1.0, matrix_lr=0.02, weight_decay=0.0)
    first.step()
    assert torch.equal(module.weight.grad, gradient)
    expected = gradient.double() / gradient.double().norm()
    for _ in range(5):
        square = expected @ expected.T
        expected = 3.4445 * expected + (-4.7750 * square + 2.0315 * square @ square) @ expected
    step = (before - module.weight.detach()).double() / (
        0.02 * max(1.0, shape[0] / shape[1]) ** 0.5
    )
    off = (step - expected).norm() / expected.norm()
    assert (off < 1e-5) is not has_bf16
    assert off < 0.1


def test_token_vectors_and_some_matrices_have_rates_of_their_own():
    model = small_model("t5")
    matrices = matrices_of(model)
    shares = {name: 0.25 for name in matrices if "query" in name}
    optimizers = muon(
        model, matrices, lr=3e-3, matrix_lr=0.02, shares=shares, table_lr=0.1, weight_decay=0.0
    )
    rates = {
        id(weight): group["lr"]
        for optimizer in optimizers
        for group in optimizer.param_groups
        for weight in group["params"]
    }
    assert len(rates) == len(list(model.parameters()))
    for name, weight in model.named_parameters():
        expected = 0.02 * shares.get(name, 1.0) if name in matrices else 3e-3
        assert rates[id(weight)] == (0.1 if name == "tokens.weight" else expected), name


def test_the_schedule_scales_each_groups_own_peak():
    model = small_model("llama")
    optimizers = make("muon", model)
    remember_peaks(optimizers)
    assert set_learning_rate(optimizers, 0.5) == pytest.approx(1.5e-3)
    assert set_learning_rate(optimizers, 0.25) == pytest.approx(0.75e-3)
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    assert rates == pytest.approx([0.005, 0.75e-3, 0.75e-3])


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_saved_and_loaded_state_goes_on_bit_equal(name, kind, tmp_path):
    model = small_model(name)
    if name == "bert":
        # Without sentence pairs this head gets no gradient, and optimizers keep no state of it.
        model.heads["nsp"].requires_grad_(False)
    optimizers = make(kind, model)
    for number in range(3):
        step(model, optimizers, number)
    save_file(state_tensors(optimizers, model), tmp_path / "optimizer.safetensors")
    save_file(model.state_dict(), tmp_path / "model.safetensors")

    resumed = small_model(name, seed=5)
    if name == "bert":
        resumed.heads["nsp"].requires_grad_(False)
    resumed.load_state_dict(load_file(tmp_path / "model.safetensors"))
    fresh = make(kind, resumed)
    tensors = load_file(tmp_path / "optimizer.safetensors")
    load_state_tensors(fresh, resumed, tensors)
    again = state_tensors(fresh, resumed)
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[key], tensors[key]) for key in tensors)
    for number in (3, 4):
        step(model, optimizers, number)
        step(resumed, fresh, number)
    for (key, a), b in zip(model.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    after, after_resumed = state_tensors(optimizers, model), state_tensors(fresh, resumed)
    assert all(torch.equal(after[key], after_resumed[key]) for key in after)


def test_a_state_of_another_model_is_refused():
    model = small_model("gpt2")
    optimizers = make("adamw", model)
    with pytest.raises(KeyError):
        load_state_tensors(optimizers, model, {"no.such.weight/exp_avg": torch.zeros(3)})
