"""The two-way language model: labels to both sides, and one loss for both directions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from trivium import spec
from trivium.data import RowBatch, RowRandom
from trivium.errors import SpecError
from trivium.models import RecurrentModel, build
from trivium.objectives import Bidirectional, Causal, to_device

NONE = RowRandom(0, [0])


def rows_of(ids, lengths=None, documents=None):
    ids = np.array(ids)
    return RowBatch(
        ids,
        np.full(len(ids), ids.shape[1]) if lengths is None else np.array(lengths),
        None if documents is None else np.array(documents),
    )


def model_of(direction: str = "two-way") -> RecurrentModel:
    described = spec.RNNSpec(
        vocab_size=43,
        d_model=22,
        cell="lstm",
        d_hidden=17,
        num_layers=2,
        direction=direction,
        heads=(spec.LMHead(tied=True, bias=True),),
    )
    return build(described, seed=3).eval().requires_grad_(False)


def test_the_example_of_the_docstring():
    batch = Bidirectional().prepare(rows_of([[11, 12, 13, 14]]), NONE)
    assert batch.input_ids.tolist() == [[11, 12, 13, 14]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [[[12, 13, 14, -100], [-100, 11, 12, 13]]]
    assert list(batch.arrays()) == ["input_ids", "labels"]


def test_padding_and_other_documents_are_told_by_neither():
    batch = Bidirectional().prepare(rows_of([[11, 12, 13, 14], [21, 22, 0, 0]], [4, 2]), NONE)
    assert batch.labels is not None
    assert batch.labels[1].tolist() == [[22, -100, -100, -100], [-100, 21, -100, -100]]
    assert batch.attention_mask is not None
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    apart = Bidirectional().prepare(rows_of([[11, 12, 21, 22, 0]], [4], [[1, 1, 2, 2, 0]]), NONE)
    assert apart.labels is not None
    assert apart.labels[0].tolist() == [[12, -100, 22, -100, -100], [-100, 11, -100, 21, -100]]
    assert apart.attention_mask is None


def test_the_loss_is_that_of_both_directions():
    model, ids = model_of(), np.random.default_rng(0).integers(1, 43, (5, 11))
    batch = to_device(Bidirectional().prepare(rows_of(ids), NONE), torch.device("cpu"))
    loss = Bidirectional().loss(model, batch)
    assert loss.count == 2 * 5 * 10
    tensor = torch.from_numpy(ids)
    forward, backward = model.logits(model.two_ways(tensor)).unbind(1)
    expected = F.cross_entropy(forward[:, :-1].transpose(1, 2), tensor[:, 1:], reduction="sum")
    expected += F.cross_entropy(backward[:, 1:].transpose(1, 2), tensor[:, :-1], reduction="sum")
    torch.testing.assert_close(loss.sum, expected)
    causal = to_device(Causal().prepare(rows_of(ids), NONE), torch.device("cpu"))
    assert Causal().loss(model, causal).sum < loss.sum


def test_packed_documents_cost_what_they_cost_alone():
    model, ids = model_of(), np.random.default_rng(1).integers(1, 43, (1, 11))
    objective, device = Bidirectional(), torch.device("cpu")

    def cost(rows: RowBatch) -> float:
        return float(objective.loss(model, to_device(objective.prepare(rows, NONE), device)).sum)

    packed = cost(rows_of(ids, None, [[1] * 4 + [2] * 7]))
    assert packed == pytest.approx(cost(rows_of(ids[:, :4])) + cost(rows_of(ids[:, 4:])), rel=1e-5)
    padded = np.concatenate([ids, np.zeros((1, 3), dtype=ids.dtype)], 1)
    assert cost(rows_of(padded, [11])) == pytest.approx(cost(rows_of(ids)), rel=1e-5)


def test_a_model_that_reads_one_way_is_refused():
    batch = to_device(Bidirectional().prepare(rows_of([[1, 2, 3]]), NONE), torch.device("cpu"))
    with pytest.raises(SpecError, match="two-way"):
        Bidirectional().loss(model_of("forward"), batch)
