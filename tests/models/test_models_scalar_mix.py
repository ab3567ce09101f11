"""ELMo's mix of layers against its formula in float64, and what a task reads of it."""

from __future__ import annotations

import pytest
import torch
from small_models import ALL_SPECS, random_ids

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build

pytestmark = pytest.mark.usefixtures("double_precision")

HEADS = spec.ClassifierHead(num_labels=3, pooling="mean"), spec.ScalarMix(num_layers=3)


def test_the_mix_is_a_weighted_sum_of_both_directions_of_all_layers():
    part = ALL_SPECS["elmo"].replace(connections="plain", heads=HEADS, dropout=0.5)
    model, ids = build(part, seed=2).eval(), random_ids(2, 7)
    mix = model.heads["scalar-mix"]
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
    alone = build(part.replace(heads=HEADS[1:]))
    for mixed, head, known in ((model, "scalar-mix", "classifier"), (alone, None, "none")):
        with pytest.raises(SpecError, match=f"has no head.*; it has: {known}"):
            mixed.logits(expected, head)
    dropped = (model.train()(ids) == 0.0).double().mean()
    assert dropped == pytest.approx(0.5, abs=0.2)
    without = build(part.replace(heads=HEADS[:1])).eval()
    without.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(without(ids), layers[-1])


def test_padding_other_documents_and_selected_positions_change_nothing():
    model, ids = build(ALL_SPECS["elmo"].replace(heads=HEADS), seed=2).eval(), random_ids(1, 9)
    alone = model(ids)
    assert alone.shape == (1, 9, model.spec.head_config.d_model)
    mask = torch.ones(1, 12, dtype=torch.int64)
    mask[:, 9:] = 0
    padded = torch.cat((ids, ids[:, :3]), 1)
    torch.testing.assert_close(model(padded, attention_mask=mask)[:, :9], alone)
    documents = torch.tensor([[1] * 4 + [2] * 5])
    parts = [model(part) for part in ids.split([4, 5], 1)]
    torch.testing.assert_close(model(ids, document_ids=documents), torch.cat(parts, 1))
    torch.testing.assert_close(model(ids, gather_positions=torch.tensor([8, 2])), alone[0, [8, 2]])
    with pytest.raises(SpecError, match="no cache"):
        model.new_cache(1, 9)
