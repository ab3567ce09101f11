"""Cells against the papers' formulas in float64, and texts that are told apart in a batch."""

from __future__ import annotations

import pytest
import torch

from trivium import spec
from trivium.nn.recurrent import RecurrentCache, RecurrentLayers, Texts, find_texts

INPUTS, CELLS, LENGTH, ROWS = 5, 7, 11, 3


def layers(cell: str, **changes: object) -> RecurrentLayers:
    described = spec.RNNSpec(
        vocab_size=13, d_model=INPUTS, cell=cell, d_hidden=CELLS, num_layers=1
    ).replace(**changes)
    torch.manual_seed(0)
    return RecurrentLayers(described).double()


def gates(made: RecurrentLayers, inputs: torch.Tensor, state: torch.Tensor, suffix: str = "l0"):
    """W x + b and U h + c, for every gate."""
    parts = {name: getattr(made.cells, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh")}
    ours = parts["weight_ih"] @ inputs + getattr(made.cells, f"bias_ih_{suffix}")
    theirs = parts["weight_hh"] @ state + getattr(made.cells, f"bias_hh_{suffix}")
    return ours.split(CELLS), theirs.split(CELLS)


def elman(made: RecurrentLayers, x: torch.Tensor) -> torch.Tensor:
    """h_t = tanh(W x_t + U h_t-1 + b)."""
    state, found = x.new_zeros(CELLS), []
    for inputs in x:
        (ours,), (theirs,) = gates(made, inputs, state)
        state = torch.tanh(ours + theirs)
        found.append(state)
    return torch.stack(found)


def lstm(made: RecurrentLayers, x: torch.Tensor) -> torch.Tensor:
    """c_t = f c_t-1 + i g, h_t = o tanh(c_t) (Gers et al. 1999, without peepholes)."""
    state, memory, found = x.new_zeros(CELLS), x.new_zeros(CELLS), []
    for inputs in x:
        i, f, g, o = (a + b for a, b in zip(*gates(made, inputs, state), strict=True))
        memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
        state = torch.sigmoid(o) * torch.tanh(memory)
        found.append(state)
    return torch.stack(found)


def gru(made: RecurrentLayers, x: torch.Tensor) -> torch.Tensor:
    """h_t = z h_t-1 + (1 - z) tanh(W x_t + r (U h_t-1))."""
    state, found = x.new_zeros(CELLS), []
    for inputs in x:
        (r, z, n), (hr, hz, hn) = gates(made, inputs, state)
        update = torch.sigmoid(z + hz)
        state = update * state + (1 - update) * torch.tanh(n + torch.sigmoid(r + hr) * hn)
        found.append(state)
    return torch.stack(found)


@pytest.mark.parametrize(("cell", "formula"), [("elman", elman), ("lstm", lstm), ("gru", gru)])
def test_a_cell_is_its_formula(cell, formula):
    made = layers(cell)
    x = torch.randn(ROWS, LENGTH, INPUTS, dtype=torch.float64)
    for row, found in zip(x, made(x), strict=True):
        torch.testing.assert_close(found, formula(made, row), rtol=1e-12, atol=1e-12)
    backwards = made(x, backwards=True)
    torch.testing.assert_close(backwards[1], formula(made, x[1].flip(0)).flip(0))


def test_both_ways_join_two_readings():
    made = layers("gru", direction="both")
    x = torch.randn(ROWS, LENGTH, INPUTS, dtype=torch.float64)
    found = made(x)
    assert found.shape == (ROWS, LENGTH, 2 * CELLS)
    torch.testing.assert_close(found[0, :, :CELLS], gru(made, x[0]))


def test_texts_of_packed_and_padded_rows():
    documents = torch.tensor([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0], [4, 7, 7, 7, 7]])
    texts = find_texts(documents, None, documents)
    assert texts is not None
    assert texts.lengths.tolist() == [2, 3, 3, 1, 4]
    assert texts.rows.tolist() == [0, 0, 1, 2, 2]
    x = torch.arange(15.0).view(3, 5, 1)
    apart = texts.split(x)
    assert apart[:, :, 0].tolist() == [
        [0, 1, 0, 0],
        [2, 3, 4, 0],
        [5, 6, 7, 0],
        [10, 0, 0, 0],
        [11, 12, 13, 14],
    ]
    assert texts.turned(apart)[1, :, 0].tolist() == [4, 3, 2, 0]
    joined = texts.join(apart, 3, 5)
    assert joined[1, 3:].abs().sum() == 0
    assert torch.equal(joined[documents != 0], x[documents != 0])


def test_rows_that_are_whole_need_no_telling_apart():
    ids = torch.ones(2, 3, dtype=torch.long)
    assert find_texts(ids, None, None) is None
    texts = find_texts(ids, torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]]), None)
    assert isinstance(texts, Texts)
    assert texts.flat.tolist() == [1, 2, 3, 4]


def test_a_row_without_a_real_token_keeps_its_state():
    made, cache = layers("lstm"), RecurrentCache(2, 9)
    x = torch.randn(2, 4, INPUTS, dtype=torch.float64)
    ids = torch.ones(2, 4, dtype=torch.long)
    made(x, cache=cache)
    before = cache.state
    made(x, texts=find_texts(ids, torch.tensor([[1] * 4, [0] * 4]), None), cache=cache)
    assert before is not None
    assert cache.state is not None
    for old, new in zip(before, cache.state, strict=True):
        assert torch.equal(old[:, 1], new[:, 1])
        assert not torch.equal(old[:, 0], new[:, 0])
