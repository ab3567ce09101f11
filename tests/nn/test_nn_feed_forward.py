"""Norms and feed-forward networks against the papers' formulas, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.activations import ACTIVATIONS
from trivium.nn.feed_forwards.mlp import MLPModule
from trivium.nn.norm import build_norm

pytestmark = pytest.mark.usefixtures("double_precision")

WIDTH, D_FF = 11, 17
FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    # x * Phi(x) (Hendrycks and Gimpel 2016)
    "gelu": lambda x: x * 0.5 * (1.0 + math.erf(x / math.sqrt(2.0))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    # x * sigmoid(beta x) (Ramachandran et al. 2017)
    "silu": lambda x: x / (1.0 + math.exp(-x)),
    "tanh": math.tanh,
    "identity": lambda x: x,
    spec.Swish(beta=1.7): lambda x: x / (1.0 + math.exp(-1.7 * x)),
}


def randomised(module):
    for weight in module.double().parameters():
        torch.nn.init.normal_(weight)
    return module


def array(tensor):
    return tensor.detach().numpy()


def test_norms():
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64) * 3 + 1
    mean = array(x).mean(-1, keepdims=True)
    for eps in (1e-12, 1e-5, 0.5):
        for bias in (True, False):
            layer = randomised(build_norm(spec.LayerNorm(eps=eps, bias=bias), WIDTH))
            variance = ((array(x) - mean) ** 2).mean(-1, keepdims=True)
            expected = (array(x) - mean) / np.sqrt(variance + eps) * array(layer.weight)
            expected = expected + (array(layer.bias) if bias else 0.0)
            np.testing.assert_allclose(array(layer(x)), expected, rtol=1e-10)
        rms = randomised(build_norm(spec.RMSNorm(eps=eps), WIDTH))
        root = np.sqrt((array(x) ** 2).mean(-1, keepdims=True) + eps)
        np.testing.assert_allclose(array(rms(x)), array(x) / root * array(rms.weight), rtol=1e-10)
        shifted = randomised(build_norm(spec.LayerNorm(eps=eps, offset=1), WIDTH))
        variance = ((array(x) - mean) ** 2).mean(-1, keepdims=True)
        expected = (array(x) - mean) / np.sqrt(variance + eps) * (1 + array(shifted.weight))
        expected = expected + array(shifted.bias)
        np.testing.assert_allclose(array(shifted(x)), expected, rtol=1e-9)
        for offset in (0, 1):
            rms = randomised(build_norm(spec.RMSNorm(eps=eps, offset=offset, bias=True), WIDTH))
            expected = array(x) / root * (offset + array(rms.weight)) + array(rms.bias)
            np.testing.assert_allclose(array(rms(x)), expected, rtol=1e-9)
        for norm, shift, norm_of in (
            (spec.LayerNorm, mean, torch.nn.functional.layer_norm),
            (spec.RMSNorm, 0.0, torch.nn.functional.rms_norm),
        ):
            plain = build_norm(norm(eps=eps, weight=False, bias=False), WIDTH)
            assert not list(plain.parameters())
            torch.testing.assert_close(plain(x), norm_of(x, (WIDTH,), eps=eps))
            biased = randomised(build_norm(norm(eps=eps, weight=False, bias=True), WIDTH))
            [bias] = biased.parameters()
            root = np.sqrt(((array(x) - shift) ** 2).mean(-1, keepdims=True) + eps)
            expected = (array(x) - shift) / root + array(bias)
            np.testing.assert_allclose(array(biased(x)), expected, rtol=1e-9)
        own = randomised(build_norm(spec.UnbiasedLayerNorm(eps=eps), WIDTH))
        deviation = array(x).std(-1, ddof=1, keepdims=True)
        expected = (array(x) - mean) / (deviation + eps) * array(own.weight) + array(own.bias)
        np.testing.assert_allclose(array(own(x)), expected, rtol=1e-9)


def test_an_offset_without_a_weight_is_refused():
    for norm in (spec.RMSNorm, spec.LayerNorm):
        with pytest.raises(SpecError, match="offset=1 is added to the weight"):
            norm(offset=1, weight=False)


def test_feed_forward_networks():
    """act(x W) W2, with a gate (act(x W) * x V) W2 (Shazeer 2020, equation 6)."""
    assert {name for name in FORMULAS if isinstance(name, str)} == set(ACTIVATIONS)
    with pytest.raises(
        SpecError, match=r"not one of gelu,.*kind = .swish.* Did you mean \"gelu_tanh\"\?"
    ):
        MLPModule(spec.MLP(d_ff=D_FF, activation="gelu_tan"), WIDTH)
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64) * 0.3
    for name, formula in FORMULAS.items():
        for gated, bias in ((True, False), (False, True)):
            described = spec.MLP(d_ff=D_FF, activation=name, gated=gated, bias=bias)
            module = randomised(MLPModule(described, WIDTH))

            def linear(layer, values, bias=bias):
                return values @ array(layer.weight).T + (array(layer.bias) if bias else 0.0)

            activation, up = np.vectorize(formula), linear(module.up, x.numpy())
            inner = activation(linear(module.gate, x.numpy())) * up if gated else activation(up)
            expected = linear(module.down, inner)
            y, loss = module(x)
            np.testing.assert_allclose(array(y), expected, rtol=1e-8, atol=1e-10)
            assert loss is None


def test_clamped_gates_of_gpt_oss():
    """(min(g, c) sigmoid(a min(g, c)) (u in [-c, c] + 1)) W2, as transformers computes it."""
    described = spec.MLP(
        d_ff=D_FF, activation=spec.Swish(beta=1.702), gated=True, clamp=0.4, up_offset=1
    )
    module = randomised(MLPModule(described, WIDTH))
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64)
    gate, up = array(module.gate(x)).clip(max=0.4), array(module.up(x)).clip(-0.4, 0.4)
    inner = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    expected = array(module.down(torch.from_numpy(inner)))
    np.testing.assert_allclose(array(module(x)[0]), expected, rtol=1e-8, atol=1e-10)
    module.fuse_projections()
    np.testing.assert_allclose(array(module(x)[0]), expected, rtol=1e-8, atol=1e-10)
    for changes in ({"clamp": 1.0}, {"up_offset": 1}):
        with pytest.raises(SpecError, match="are for gated networks"):
            spec.MLP(d_ff=D_FF, activation="gelu", **changes)
