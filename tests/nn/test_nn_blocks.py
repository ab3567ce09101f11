"""Norms and feed-forward networks against the papers' formulas, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.nn.feed_forward import (
    ACTIVATIONS,
    FeedForward,
    GatedFeedForward,
    build_activation,
    build_feed_forward,
)
from trivium.nn.norm import build_norm

WIDTH, D_FF = 11, 17

FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    # x * Phi(x) (Hendrycks and Gimpel 2016)
    "gelu": lambda x: x * 0.5 * (1.0 + math.erf(x / math.sqrt(2.0))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    # x * sigmoid(x) (Ramachandran et al. 2017)
    "silu": lambda x: x / (1.0 + math.exp(-x)),
    "tanh": math.tanh,
}
BETAS = [0.1, 1.0, 1.702, 10.0]


def randomised(module):
    module = module.double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_()
    return module


def numpy_of(parameter):
    return parameter.detach().numpy()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_layer_norm(eps, bias):
    module = randomised(build_norm(spec.LayerNorm(eps=eps, bias=bias), WIDTH))
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64) * 3 + 1
    values = x.numpy()
    mean = values.mean(-1, keepdims=True)
    variance = ((values - mean) ** 2).mean(-1, keepdims=True)
    expected = (values - mean) / np.sqrt(variance + eps) * numpy_of(module.weight)
    if bias:
        expected = expected + numpy_of(module.bias)
    np.testing.assert_allclose(numpy_of(module(x)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
def test_rms_norm(eps):
    module = randomised(build_norm(spec.RMSNorm(eps=eps), WIDTH))
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64) * 3 + 1
    values = x.numpy()
    root = np.sqrt((values**2).mean(-1, keepdims=True) + eps)
    expected = values / root * numpy_of(module.weight)
    np.testing.assert_allclose(numpy_of(module(x)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_activations(name):
    assert set(FORMULAS) == set(ACTIVATIONS)
    for x in np.linspace(-6.0, 6.0, 121):
        found = ACTIVATIONS[name](torch.tensor(x, dtype=torch.float64)).item()
        assert found == pytest.approx(FORMULAS[name](x), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_swish(beta):
    """x * sigmoid(beta x) (Ramachandran et al. 2017); beta 1 is silu."""
    activation = build_activation(spec.Swish(beta=beta))
    for x in np.linspace(-6.0, 6.0, 121):
        found = activation(torch.tensor(x, dtype=torch.float64)).item()
        assert found == pytest.approx(x / (1.0 + math.exp(-beta * x)), rel=1e-9, abs=1e-12)
        if beta == 1.0:
            assert found == pytest.approx(FORMULAS["silu"](x), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_swiglu_of_any_beta(beta):
    """(Swish_beta(x W) * x V) W2 (Shazeer 2020, equation 6)."""
    activation = spec.Swish(beta=beta)
    description = spec.FeedForward(d_ff=D_FF, activation=activation, gated=True, bias=False)
    module = randomised(build_feed_forward(description, WIDTH))
    assert isinstance(module, GatedFeedForward)
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64) * 0.3
    gate = x.numpy() @ numpy_of(module.gate.weight).T
    inner = gate / (1.0 + np.exp(-beta * gate)) * (x.numpy() @ numpy_of(module.up.weight).T)
    expected = inner @ numpy_of(module.down.weight).T
    np.testing.assert_allclose(numpy_of(module(x)), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_feed_forward(name, bias, gated):
    """(act(x W) * x V) W2 with a gate (Shazeer 2020, equation 6), else act(x W) W2."""
    description = spec.FeedForward(d_ff=D_FF, activation=name, gated=gated, bias=bias)
    module = randomised(build_feed_forward(description, WIDTH))
    assert type(module) is (GatedFeedForward if gated else FeedForward)
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64) * 0.3
    activation = np.vectorize(FORMULAS[name])

    def linear(layer, values):
        product = values @ numpy_of(layer.weight).T
        return product + numpy_of(layer.bias) if bias else product

    up = linear(module.up, x.numpy())
    inner = activation(linear(module.gate, x.numpy())) * up if gated else activation(up)
    np.testing.assert_allclose(
        numpy_of(module(x)), linear(module.down, inner), rtol=1e-9, atol=1e-11
    )
