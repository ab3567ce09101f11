"""Experts against the papers' formulas in float64, and what becomes of their loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from double import double_precision
from small_models import SPECS, WIDTH, random_ids, random_model

from trivium import spec
from trivium.adapt.quantize import pack
from trivium.errors import SpecError
from trivium.models import active_parameters, build, flops_per_token, num_parameters
from trivium.nn import Context
from trivium.nn.feed_forwards.experts import ExpertsNetwork
from trivium.spec import Experts

EXPERT = spec.FeedForward(d_ff=7, activation="tanh", bias=False)
PART = Experts(num_experts=5, num_chosen=2, expert=EXPERT, balance=0.3)
ROWS, LENGTH = 2, 6


def mixture(x, router, experts, real, chosen):
    """Jiang et al. 2024, section 2.1 and Fedus et al. 2021, equations 4 to 6, token by token."""
    y, counts, probabilities = np.zeros_like(x), np.zeros(5), np.zeros(5)
    for index in np.ndindex(x.shape[:-1]):
        p = np.exp(router @ x[index])
        p /= p.sum()
        best = sorted(range(5), key=lambda i: -p[i])[:chosen]
        for i in best:
            up, down = experts[i]
            y[index] += p[i] / sum(p[best]) * (down @ np.tanh(up @ x[index]))
            counts[i] += real[index]
        probabilities += real[index] * p
    return y, 0.3 * 5 * (counts * probabilities).sum() / max(1, real.sum()) ** 2


@double_precision()
def test_a_mixture_is_the_formula_and_only_chosen_experts_compute():
    x, padding = torch.randn(ROWS, LENGTH, WIDTH), torch.tensor([[1] * 6, [1] * 2 + [0] * 4])
    select, none = torch.tensor([1, 3, 7, 10]), torch.tensor([], dtype=torch.int64)
    whole, flat, computed = np.ones((ROWS, LENGTH)), x.flatten(0, 1), []
    for chosen in (1, 2, 3):
        network = ExpertsNetwork(PART.replace(num_chosen=chosen), WIDTH)
        for expert in network.experts:
            expert.register_forward_hook(lambda _, inputs, __: computed.append(len(inputs[0])))
        router = network.router.weight.detach().numpy()
        experts = [tuple(w.detach().numpy() for w in e.parameters()) for e in network.experts]
        for vectors, limits, real in (
            (x, {}, whole),
            (x, {"real": padding}, padding.numpy()),
            (x, {"documents": 3 * padding}, padding.numpy()),
            (flat[select], {"real": padding, "select": select}, np.array([1, 1, 1, 0])),
            (flat[none], {"select": none}, np.array([])),
        ):
            for training in (True, False):  # without, an expert of no token does not run
                computed.clear()
                y, load = network.train(training)(vectors, Context.of_length(LENGTH, **limits))
                expected = mixture(vectors.numpy(), router, experts, real, chosen)
                np.testing.assert_allclose(y.detach().numpy(), expected[0], atol=1e-10)
                np.testing.assert_allclose(network.loss(load).item(), expected[1], atol=1e-10)
                assert sum(computed) == chosen * vectors[..., 0].numel()
                assert training or 0 not in computed
    with pytest.raises(SpecError, match="num_chosen=6 is more than num_experts=5"):
        PART.replace(num_chosen=6)


@double_precision()
def test_the_loss_is_of_all_layers_of_a_stack_and_weights_that_compute_are_counted():
    bart = SPECS["bart"]
    bart = bart.replace(
        encoder=bart.encoder.with_layers(feed_forward=PART),
        decoder=bart.decoder.with_layers(feed_forward=PART),
    )
    model, loads = random_model(bart), {}
    for module in model.modules():
        if isinstance(module, ExpertsNetwork):
            module.register_forward_hook(lambda of, _, output: loads.update({of: output[1]}))
    _, loss = model.read(random_ids(2, 7), decoder_input_ids=random_ids(2, 5, seed=1))
    expected = 0.0
    for stack in model.stacks:
        counts, probabilities = sum(loads[block.feed_forward] for block in stack.layers)
        tokens = probabilities.sum()
        expected = expected + 0.3 * 5 * (counts * probabilities).sum() / tokens**2
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0.0)

    stack, matrix = SPECS["gpt2"].decoder, 2 * 7 * WIDTH
    sparse, dense = (
        SPECS["gpt2"].replace(decoder=stack.with_layers(feed_forward=part))
        for part in (PART, EXPERT.replace(d_ff=14))
    )
    assert num_parameters(sparse) - active_parameters(sparse) == 2 * 3 * matrix
    assert active_parameters(sparse) - num_parameters(dense) == 2 * 5 * WIDTH  # the router
    more = flops_per_token(sparse, LENGTH) - flops_per_token(dense, LENGTH)
    assert more == 6 * 2 * 5 * WIDTH


def test_experts_of_8_bits_generate():
    """Also where a token leaves some experts without rows."""
    part = PART.replace(expert=EXPERT.replace(d_ff=64))
    described = SPECS["gpt2"].replace(decoder=SPECS["gpt2"].decoder.with_layers(feed_forward=part))
    with torch.no_grad():
        exact = build(described, seed=0).eval()
        ids = random_ids(1, 9)
        expected = exact.logits(exact(ids))
        packed = pack(exact, "int8")
        cache = packed.new_cache(1, 9)
        parts = [packed.logits(packed(each, cache=cache)) for each in ids.split([7, 1, 1], 1)]
    error = (torch.cat(parts, 1) - expected).abs().max() / expected.abs().max()
    assert error < 0.05
