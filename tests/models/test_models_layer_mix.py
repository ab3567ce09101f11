"""ELMo's mix of layers against its formula in float64."""

from __future__ import annotations

import pytest
import torch
from support.small_models import ALL_SPECS

from trivium import spec
from trivium.models import build

pytestmark = pytest.mark.usefixtures("double_precision")


def test_the_mix_is_a_weighted_sum_of_both_directions_of_all_layers():
    model = build(ALL_SPECS["elmo-mix"], seed=2).eval()
    ids = torch.arange(14).view(2, 7) % 11
    mix = model.heads["mix"]
    assert not mix.weights.any()
    assert mix.gamma.tolist() == [1.0]
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.3, -1.1, 0.7]))
        mix.gamma.fill_(1.7)
    forward = backward = model.tokens(ids)
    layers = [torch.cat((forward, backward), -1)]
    for one, other in zip(model.rnn.layers.cells, model.backward_rnn.layers.cells):
        forward, backward = one(forward)[0], other(backward.flip(1))[0].flip(1)
        layers.append(torch.cat((forward, backward), -1))
    shares = torch.tensor([0.3, -1.1, 0.7]).exp()
    shares = 1.7 * shares / shares.sum()
    expected = shares[0] * layers[0] + shares[1] * layers[1] + shares[2] * layers[2]
    torch.testing.assert_close(model(ids), expected)
    logits = model.logits(model(ids))  # of the task's head, not of the mix
    torch.testing.assert_close(logits, model.heads["classifier"].classifier(expected.mean(1)))
    without = build(model.spec.replace(heads=(spec.TaggerHead(num_labels=2),)), seed=2).eval()
    torch.testing.assert_close(without(ids), layers[-1])
