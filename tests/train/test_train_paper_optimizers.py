"""The optimizers of papers: their formulas in float64, their state, and where they are refused."""

from __future__ import annotations

import pytest
import torch
from small_models import small_model

from trivium.errors import RecipeError
from trivium.train.optimizers import Optimizer
from trivium.train.recipe_loading import load_recipe
from trivium.workflows.training_run import _check_sharding_support

LR, STEPS = 0.003, 7


def weights_after(optimizer, gradients) -> list[torch.Tensor]:
    """The weights of a matrix after each gradient, and the first weights."""
    torch.manual_seed(3)
    model = torch.nn.Linear(5, 7, bias=False).double()
    [built] = Optimizer.kinds[optimizer["kind"]](lr=LR, **optimizer).build(model)
    weights = [model.weight.detach().clone()]
    for gradient in gradients:
        model.weight.grad = gradient.clone()
        built.step()
        weights.append(model.weight.detach().clone())
    return weights


@pytest.fixture
def gradients():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(7, 5, generator=generator, dtype=torch.float64) for _ in range(STEPS)]


def rms(x):
    return x.square().mean().sqrt()


def test_adafactor_is_that_of_the_paper(gradients):
    """Shazeer and Stern 2018, algorithm 4, with d = 1 and eps2 = 1e-3."""
    weights = weights_after({"kind": "adafactor", "weight_decay": 0.0}, gradients)
    rows, columns, weight = torch.zeros(7, 1), torch.zeros(1, 5), weights[0]
    for step, (gradient, found) in enumerate(zip(gradients, weights[1:], strict=True), start=1):
        decay = 1 - step**-0.8
        squares = gradient.square()
        rows = decay * rows + (1 - decay) * squares.mean(1, keepdim=True)
        columns = decay * columns + (1 - decay) * squares.mean(0, keepdim=True)
        update = gradient / (rows * columns / rows.mean()).sqrt()
        update /= max(1.0, rms(update))
        weight = weight - max(1e-3, rms(weight)) * min(LR, step**-0.5) * update
        torch.testing.assert_close(found, weight, rtol=1e-6, atol=1e-9)


def test_lamb_is_that_of_the_paper(gradients):
    """You et al. 2019, algorithm 2, without bias correction; phi limits norms to 10."""
    options = {"kind": "lamb", "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-6}
    weights = weights_after(options, gradients)
    first, second, weight = torch.zeros(7, 5), torch.zeros(7, 5), weights[0]
    for gradient, found in zip(gradients, weights[1:], strict=True):
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient.square()
        update = first / (second.sqrt() + 1e-6) + 0.1 * weight
        ratio = weight.norm().clamp(max=10.0) / (update.norm() + 1e-6)
        weight = weight - LR * ratio * update
        torch.testing.assert_close(found, weight, rtol=1e-6, atol=1e-9)


def test_sgd_adds_up_gradients(gradients):
    weights = weights_after({"kind": "sgd", "momentum": 0.5, "weight_decay": 0.0}, gradients)
    total, weight = torch.zeros(7, 5), weights[0]
    for gradient, found in zip(gradients, weights[1:], strict=True):
        total = 0.5 * total + gradient
        weight = weight - LR * total
        torch.testing.assert_close(found, weight)


def test_adagrad_and_adadelta_are_those_of_their_papers(gradients):
    """Duchi et al. 2011, and Zeiler 2012, algorithm 1."""
    options = {"kind": "adagrad", "initial_sum": 1.0, "eps": 1e-8, "weight_decay": 0.0}
    weights = weights_after(options, gradients)
    squares, weight = torch.ones(7, 5), weights[0]
    for gradient, found in zip(gradients, weights[1:], strict=True):
        squares = squares + gradient.square()
        weight = weight - LR * gradient / (squares.sqrt() + 1e-8)
        torch.testing.assert_close(found, weight)
    weights = weights_after({"kind": "adadelta", "weight_decay": 0.0}, gradients)
    squares, steps, weight = torch.zeros(7, 5), torch.zeros(7, 5), weights[0]
    for gradient, found in zip(gradients, weights[1:], strict=True):
        squares = 0.95 * squares + 0.05 * gradient.square()
        step = ((steps + 1e-6) / (squares + 1e-6)).sqrt() * gradient
        steps = 0.95 * steps + 0.05 * step.square()
        weight = weight - LR * step
        torch.testing.assert_close(found, weight)


def test_state_is_counted():
    model = small_model("gpt2")
    parameters = list(model.parameters())
    for kind, options in (("adafactor", {}), ("lamb", {}), ("sgd", {"momentum": 0.9})):
        config = Optimizer.kinds[kind](lr=1e-3, **options)
        [optimizer] = config.build(model)
        for weight in parameters:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        kept = sum(
            value.numel()
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.numel() > 1
        )
        assert config.state_size(model) == pytest.approx(kept, rel=0.01)


def test_weights_decay_only_if_it_is_set():
    for kind in ("adafactor", "adagrad", "adadelta", "sgd"):
        model = small_model("gpt2")
        [built] = Optimizer.kinds[kind](lr=1e-3).build(model)
        assert {group["weight_decay"] for group in built.param_groups} == {0.0}
        [built] = Optimizer.kinds[kind](lr=1e-3, weight_decay=0.2).build(model)
        assert {group["weight_decay"] for group in built.param_groups} == {0.2, 0.0}


def test_what_they_cannot_do_is_refused():
    with pytest.raises(RecipeError, match="has no default rate"):
        Optimizer.kinds["sgd"]().with_default_learning_rates(1e-3, 1.0)
    for kind in ("adafactor", "lamb"):
        recipe = load_recipe("bert-tiny", [f"optimizer.kind={kind}"])
        with pytest.raises(RecipeError, match="whole weights"):
            _check_sharding_support(recipe)
    assert Optimizer.kinds["adafactor"]().with_default_learning_rates(1e-3, 1.0).lr == 0.01
