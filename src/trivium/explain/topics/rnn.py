"""Explanation of recurrent networks: one step in detail, and how gradients decay with distance."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trivium.explain.page import Bilingual, Curves, Formula, Heading, Page, Table, get_text
from trivium.models import RecurrentModel, build
from trivium.models.rnn import RNNSpec
from trivium.nn.recurrent import RecurrentLayers

_WIDTH, _ROWS = 64, 16
_U, _V, _B = [[0.5, 0.25], [-0.25, 0.5]], [[1.0], [0.5]], [0.0, 0.1]


def explain(sequence: list[float] | None = None, *, distance: int = 60, seed: int = 0) -> Page:
    """Compute the hidden states of a sequence, and measure how gradients decay with distance.

    Args:
        sequence: The input, one number per step. Default: 1 0 0 0.
        distance: Maximum distance in steps over which to measure the gradient.
        seed: Random seed for the weights and inputs of the measurement.
    """
    sequence = sequence or [1.0, 0.0, 0.0, 0.0]
    layers = RecurrentLayers(_make_rnn_spec("elman", d_model=1, d_hidden=2)).double()
    u, v, b = (torch.tensor(each, dtype=torch.float64) for each in (_U, _V, _B))
    with torch.no_grad():
        for name, weight in layers.cells.named_parameters():
            weight.copy_({"weight_hh_l0": u, "weight_ih_l0": v, "bias_ih_l0": b}.get(name, b * 0))
        x = torch.tensor(sequence, dtype=torch.float64)[:, None]
        h = layers(x[None])[0][0]
    before = torch.cat((torch.zeros(1, 2), h[:-1]))
    rows = [
        [f"{t + 1}", x[t].item(), *(each[t].tolist() for each in (before @ u.T, x @ v.T, h))]
        for t in range(len(x))
    ]
    norms = {
        get_text("rnn.simple_rnn"): _measure_gradient_norms("elman", distance, seed),
        "GRU": _measure_gradient_norms("gru", distance, seed),
        get_text("rnn.lstm_forget_bias_1"): _measure_gradient_norms("lstm", distance, seed),
        get_text("rnn.lstm_forget_bias_5"): _measure_gradient_norms("lstm", distance, seed, 5.0),
    }
    steps = range(distance + 1)
    return Page(
        get_text("rnn.recurrent_network"),
        [
            Formula(
                f"h_t = sigma(U h_(t-1) + V x_t + b),    h_0 = 0\nU = {_U}    V = {_V}    b = {_B}"
            ),
            Table(["t", "x_t", "U h_(t-1)", "V x_t", "h_t"], rows),
            get_text("rnn.sigma_note"),
            Heading(get_text("rnn.how_far_gradient_reaches")),
            Formula("|| d h_T / d x_(T-k) ||  /  || d h_T / d x_T ||"),
            Curves(
                list(steps),
                {name: [one.log10().item() for one in norm] for name, norm in norms.items()},
                get_text("rnn.distance_k"),
                get_text("rnn.log_gradient", width=_WIDTH),
            ),
            get_text("rnn.gradient_note"),
        ],
        {
            "hidden": h.tolist(),
            "gradient_norms": {
                name.en if isinstance(name, Bilingual) else name: norm.tolist()
                for name, norm in norms.items()
            },
        },
    )


def _make_rnn_spec(cell: Literal["elman", "lstm", "gru"], d_model: int, d_hidden: int) -> RNNSpec:
    """Create the spec of a recurrent network with one layer."""
    return RNNSpec(vocab_size=2, d_model=d_model, cell=cell, d_hidden=d_hidden, num_layers=1)


def _measure_gradient_norms(
    cell: Literal["elman", "lstm", "gru"],
    distance: int,
    seed: int,
    forget_bias: float | None = None,
) -> Tensor:
    """Measure how the gradient of the last hidden state h_T decays with the distance to an input.

    The gradient is d (w . h_T) / d x_(T-k), where w is a random vector and k = 0 to `distance`. Its
    norm is averaged over several sequences and divided by the norm for k = 0.

    Args:
        cell: the kind of recurrent cell.
        distance: the largest k.
        seed: the seed of the weights and inputs.
        forget_bias: the bias of the forget gate (LSTM only); None keeps the initial bias.

    Returns:
        The relative norm for each k, float64 [distance + 1].
    """
    model = build(_make_rnn_spec(cell, _WIDTH, _WIDTH), seed=seed).double()
    assert isinstance(model, RecurrentModel)
    if forget_bias is not None:
        model.rnn.layers.cells.get_parameter("bias_ih_l0").data[_WIDTH : 2 * _WIDTH] = forget_bias
    generator = torch.Generator().manual_seed(seed)
    shape = _ROWS, distance + 1, _WIDTH
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(_ROWS, _WIDTH, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((model.rnn.layers(x)[0][:, -1] * w).sum(), x)
    norm = gradient.norm(dim=-1).mean(0).flip(0)
    return norm / norm[0]
