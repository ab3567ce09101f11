"""Recurrent cells against the papers' formulas, step by step in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.nn.recurrent import RecurrentCache, RecurrentLayers

ROWS, LENGTH, WIDTH, HIDDEN, LAYERS = 2, 7, 5, 3, 2


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def elman(x, state, inner, recurrent, bias, recurrent_bias):
    """h = tanh(W x + U h + b) (Elman 1990)."""
    hidden = np.tanh(inner @ x + bias + recurrent @ state[0] + recurrent_bias)
    return (hidden,)


def lstm(x, state, inner, recurrent, bias, recurrent_bias):
    """Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 1999.

    i, f, o = sigmoid(...), g = tanh(...); c = f c + i g; h = o tanh(c).
    """
    hidden, cell = state
    gates = inner @ x + bias + recurrent @ hidden + recurrent_bias
    i, f, g, o = np.split(gates, 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def gru(x, state, inner, recurrent, bias, recurrent_bias):
    """Cho et al. 2014, equations 5 to 8, the reset gate after the product.

    r, z = sigmoid(...); n = tanh(W x + b + r (U h + c)); h = (1 - z) n + z h.
    """
    hidden = state[0]
    given, kept = inner @ x + bias, recurrent @ hidden + recurrent_bias
    (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(given, 3), np.split(kept, 3)
    reset, update = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    return ((1.0 - update) * np.tanh(n_x + reset * n_h) + update * hidden,)


FORMULAS = {"elman": elman, "lstm": lstm, "gru": gru}


def layers_of(cell: str, direction: str) -> RecurrentLayers:
    description = spec.RNNSpec(
        vocab_size=11,
        d_model=WIDTH,
        cell=cell,
        d_hidden=HIDDEN,
        num_layers=LAYERS,
        direction=direction,
    )
    return RecurrentLayers(description).double()


def read(cell: str, layers: RecurrentLayers, layer: int, x: np.ndarray, suffix: str) -> np.ndarray:
    """One row [T, D] through one layer in one direction -> [T, C]."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = [getattr(layers.cells, f"{n}_l{layer}{suffix}").detach().numpy() for n in names]
    state = (np.zeros(HIDDEN),) * (2 if cell == "lstm" else 1)
    said = []
    for token in x:
        state = FORMULAS[cell](token, state, *weights)
        said.append(state[0])
    return np.array(said)


@pytest.mark.parametrize("direction", ["forward", "both"])
@pytest.mark.parametrize("cell", FORMULAS)
def test_a_cell_is_its_papers_formula(cell, direction):
    layers = layers_of(cell, direction)
    x = torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64)
    found = layers(x).detach().numpy()
    for row in range(ROWS):
        said = x[row].numpy()
        for layer in range(LAYERS):
            ways = [read(cell, layers, layer, said, "")]
            if direction == "both":
                ways.append(read(cell, layers, layer, said[::-1], "_reverse")[::-1])
            said = np.concatenate(ways, axis=1)
        np.testing.assert_allclose(found[row], said, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cell", FORMULAS)
def test_backwards_is_forwards_on_the_text_turned_round(cell):
    layers, x = layers_of(cell, "forward"), torch.randn(ROWS, LENGTH, WIDTH).double()
    torch.testing.assert_close(layers(x, backwards=True), layers(x.flip(1)).flip(1))


@pytest.mark.parametrize("cell", FORMULAS)
def test_the_state_is_the_cache(cell):
    """Token by token with the state kept gives what the whole text gives at once."""
    layers, x = layers_of(cell, "forward"), torch.randn(ROWS, LENGTH, WIDTH).double()
    cache = RecurrentCache(ROWS, LENGTH)
    steps = [layers(x[:, t : t + 1], cache=cache) for t in range(LENGTH)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layers(x))
