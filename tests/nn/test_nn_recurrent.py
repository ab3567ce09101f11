"""Recurrent cells against the papers' formulas in float64, and the sequences of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.nn.recurrent import RecurrentLayers, Sequences

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, LENGTH, WIDTH, HIDDEN, LAYERS = 2, 7, 5, 3, 2


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def elman(x, state, inner, recurrent, bias, recurrent_bias):
    """h = tanh(W x + U h + b) (Elman 1990)."""
    return (np.tanh(inner @ x + bias + recurrent @ state[0] + recurrent_bias),)


def lstm(x, state, inner, recurrent, bias, recurrent_bias):
    """c = f c + i g; h = o tanh(c) (Gers et al. 1999)."""
    hidden, cell = state
    i, f, g, o = np.split(inner @ x + bias + recurrent @ hidden + recurrent_bias, 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def gru(x, state, inner, recurrent, bias, recurrent_bias):
    """n = tanh(W x + b + r (U h + c)); h = (1 - z) n + z h (Cho et al. 2014)."""
    hidden = state[0]
    (r_x, z_x, n_x), (r_h, z_h, n_h) = (
        np.split(gates, 3) for gates in (inner @ x + bias, recurrent @ hidden + recurrent_bias)
    )
    update = sigmoid(z_x + z_h)
    return ((1.0 - update) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + update * hidden,)


def elman_of(function):
    """The same with another function than tanh."""
    return lambda x, state, inner, recurrent, bias, recurrent_bias: (
        function(inner @ x + bias + recurrent @ state[0] + recurrent_bias),
    )


FORMULAS = {
    "elman": elman,
    "elman-relu": elman_of(lambda z: np.maximum(z, 0.0)),
    "elman-logistic": elman_of(sigmoid),
    "lstm": lstm,
    "gru": gru,
}


def described(cell, direction="forward"):
    return spec.RNNSpec(
        vocab_size=11,
        d_model=WIDTH,
        cell=cell,
        d_hidden=HIDDEN,
        num_layers=LAYERS,
        direction=direction,
    )


def read(cell, layers, layer, x, suffix=""):
    """One row [T, D] through one layer in one direction: [T, C]."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = [getattr(layers.cells, f"{n}_l{layer}{suffix}").detach().numpy() for n in names]
    state, outputs = (np.zeros(HIDDEN),) * (2 if cell == "lstm" else 1), []
    for token in x:
        state = FORMULAS[cell](token, state, *weights)
        outputs.append(state[0])
    return np.array(outputs)


def test_cells_are_their_formulas():
    x = torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64)
    for cell in FORMULAS:
        for direction in ("forward", "both"):
            layers = RecurrentLayers(described(cell, direction)).double()
            outputs, _ = layers(x)
            for row in range(ROWS):
                expected = x[row].numpy()
                for layer in range(LAYERS):
                    ways = [read(cell, layers, layer, expected)]
                    if direction == "both":
                        back = read(cell, layers, layer, expected[::-1], "_reverse")
                        ways.append(back[::-1])
                    expected = np.concatenate(ways, axis=1)
                np.testing.assert_allclose(outputs[row].detach().numpy(), expected, rtol=1e-10)
        backward, _ = layers(x, backward=True)
        torch.testing.assert_close(backward, layers(x.flip(1))[0].flip(1))


def test_projections_residual_connections_and_what_every_layer_makes():
    """h = W_hr (o tanh(c)) (Sak et al. 2014); every layer but the first adds its input (ELMo)."""
    x = torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64)
    part = described("lstm").replace(d_hidden=7, d_projection=HIDDEN, connections="residual")
    layers = RecurrentLayers(part).double()
    outputs, after = layers.every_layer(x)
    for row in range(ROWS):
        below = x[row].numpy()
        for layer, cells in enumerate(layers.cells):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
            *weights, project = (getattr(cells, f"{n}_l0").detach().numpy() for n in names)
            state, found = (np.zeros(HIDDEN), np.zeros(7)), []
            for token in below:
                hidden, cell = lstm(token, state, *weights)
                state = project @ hidden, cell
                found.append(state[0])
            below = np.array(found) + (below if layer else 0.0)
            np.testing.assert_allclose(outputs[layer][row].detach().numpy(), below, rtol=1e-10)
            np.testing.assert_allclose(after[1][layer, row].detach().numpy(), cell, rtol=1e-10)
    whole, last = layers(x)
    half, middle = layers(x[:, :3])
    torch.testing.assert_close(layers(x[:, 3:], state=middle)[0], whole[:, 3:])
    torch.testing.assert_close(whole, outputs[-1])
    assert [one.shape[-1] for one in last] == [HIDDEN, 7]
    assert half.shape[1] == 3


def test_sequences_of_packed_and_padded_rows():
    documents = torch.tensor([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0], [4, 7, 7, 7, 7]])
    sequences = Sequences.from_mask(documents != 0, documents)
    assert sequences.lengths == [2, 3, 3, 1, 4]
    assert sequences.rows.tolist() == [0, 0, 1, 2, 2]
    real = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    assert Sequences.from_mask(real).flat.tolist() == [0, 1, 3, 4]
    assert Sequences.from_mask(real).lengths == [4]


@pytest.mark.parametrize("cell", ["elman", "elman-logistic"])
def test_sequences_are_read_as_if_alone(cell):
    """PyTorch's cells, and the one that is a loop here: both ways, from states of their own."""
    x = torch.randn(2, 5, WIDTH)
    sequences = Sequences.from_mask(torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]]).bool())
    state = torch.randn(2 * LAYERS, 2, HIDDEN)
    layers = RecurrentLayers(described(cell, "both"))
    y, after = layers(x, sequences=sequences, state=(state,))
    for row, real in enumerate(([0, 1, 3, 4], [0, 1, 2])):
        own, last = layers(x[row : row + 1, real], state=(state[:, row : row + 1].contiguous(),))
        torch.testing.assert_close(y[row, real], own[0])
        torch.testing.assert_close(after[0][:, row], last[0][:, 0])
    assert not y[0, 2].any()
