"""Explanation of recurrent networks: each step in detail, and how gradients decay with distance.

Shape letters: T steps, C cells.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trivium.explain.page import Bilingual, Curves, Formula, Heading, Page, Table, get_text
from trivium.models import RecurrentModel, build
from trivium.models.rnn import RNNSpec
from trivium.nn.recurrent import RecurrentLayers

_WIDTH, _ROWS = 64, 16
# Per gate, in the order of PyTorch: the matrix U of the state, V of the input, the bias b.
_WEIGHTS: dict[str, dict[str, tuple[list[list[float]], list[list[float]], list[float]]]] = {
    "elman": {"": ([[0.5, 0.25], [-0.25, 0.5]], [[1.0], [0.5]], [0.0, 0.1])},
    "gru": {
        "r": ([[0.5, 0.0], [0.0, 0.5]], [[1.0], [-1.0]], [0.0, 0.0]),
        "z": ([[0.0, 0.5], [0.5, 0.0]], [[-2.0], [-1.0]], [1.0, 1.0]),
        "n": ([[0.5, 0.25], [-0.25, 0.5]], [[1.0], [0.5]], [0.0, 0.1]),
    },
    "lstm": {
        "i": ([[0.5, 0.0], [0.0, 0.5]], [[2.0], [1.0]], [0.0, 0.0]),
        "f": ([[0.0, 0.5], [0.5, 0.0]], [[0.0], [0.0]], [1.0, 1.0]),
        "g": ([[0.5, 0.25], [-0.25, 0.5]], [[1.0], [0.5]], [0.0, 0.1]),
        "o": ([[0.0, 0.0], [0.0, 0.0]], [[1.0], [1.0]], [0.0, 0.0]),
    },
}
_FORMULAS = {
    "elman": "h_t = sigma(U h_(t-1) + V x_t + b),    h_0 = 0",
    "gru": (
        "r_t = sigmoid(U_r h_(t-1) + V_r x_t + b_r)\n"
        "z_t = sigmoid(U_z h_(t-1) + V_z x_t + b_z)\n"
        "n_t = tanh(r_t * U_n h_(t-1) + V_n x_t + b_n)\n"
        "h_t = z_t * h_(t-1) + (1 - z_t) * n_t,    h_0 = 0"
    ),
    "lstm": (
        "i_t = sigmoid(U_i h_(t-1) + V_i x_t + b_i)    f_t, o_t: the same form\n"
        "g_t = tanh(U_g h_(t-1) + V_g x_t + b_g)\n"
        "c_t = f_t * c_(t-1) + i_t * g_t,    c_0 = 0\n"
        "h_t = o_t * tanh(c_t),    h_0 = 0"
    ),
}


def explain(
    sequence: list[float] | None = None,
    *,
    cell: Literal["elman", "gru", "lstm"] = "elman",
    distance: int = 60,
    seed: int = 0,
) -> Page:
    """Compute the hidden states of a sequence, and measure how gradients decay with distance.

    Args:
        sequence: The input, one number per step. Default: 1 0 0 0.
        cell: The recurrent cell whose steps are shown.
        distance: Maximum distance in steps over which to measure the gradient.
        seed: Random seed for the weights and inputs of the measurement.
    """
    sequence = sequence or [1.0, 0.0, 0.0, 0.0]
    layers = _build_layers(cell)
    x = torch.tensor(sequence, dtype=torch.float64)[:, None]
    with torch.no_grad():
        h = layers(x[None])[0][0]
    columns, steps_of_cell = _compute_steps(cell, x, h)
    rows = [
        [f"{t + 1}", x[t].item(), *(each[t].tolist() for each in steps_of_cell)]
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
            Formula(f"{_FORMULAS[cell]}\n{_list_weights(cell)}"),
            Table(["t", "x_t", *columns], rows),
            _get_note(cell),
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
            "steps": {name: each.tolist() for name, each in zip(columns, steps_of_cell)},
            "gradient_norms": {
                name.en if isinstance(name, Bilingual) else name: norm.tolist()
                for name, norm in norms.items()
            },
        },
    )


def _build_layers(cell: Literal["elman", "gru", "lstm"]) -> RecurrentLayers:
    """Build one layer of two cells that reads one number per step, with the weights above."""
    layers = RecurrentLayers(_make_rnn_spec(cell, d_model=1, d_hidden=2)).double()
    gates = [
        [torch.tensor(part, dtype=torch.float64) for part in gate]
        for gate in _WEIGHTS[cell].values()
    ]
    u, v, b = (torch.cat(parts) for parts in zip(*gates))
    with torch.no_grad():
        for name, weight in layers.cells.named_parameters():
            weight.copy_({"weight_hh_l0": u, "weight_ih_l0": v, "bias_ih_l0": b}.get(name, b * 0))
    return layers


def _compute_steps(cell: str, x: Tensor, h: Tensor) -> tuple[list[str], list[Tensor]]:
    """Compute the parts of every step by the formulas.

    Args:
        cell: the kind of recurrent cell.
        x: the inputs, [T, 1].
        h: the hidden states that the layer computed, [T, C].

    Returns:
        The names of the columns, and their values [T, C]. The last column contains `h`.
    """
    before = torch.cat((torch.zeros(1, h.shape[1], dtype=h.dtype), h[:-1]))
    products = {
        gate: (before @ u.T, x @ v.T, b)
        for gate, (u, v, b) in (
            (gate, (torch.tensor(part, dtype=h.dtype) for part in weights))
            for gate, weights in _WEIGHTS[cell].items()
        )
    }
    if cell == "elman":
        of_state, of_input, _ = products[""]
        return ["U h_(t-1)", "V x_t", "h_t"], [of_state, of_input, h]
    if cell == "gru":
        r, z = (sum(products[gate], torch.zeros(())).sigmoid() for gate in "rz")
        of_state, of_input, b = products["n"]
        new = torch.tanh(r * of_state + of_input + b)
        return ["r_t", "z_t", "n_t", "h_t"], [r, z, new, h]
    i, f, o = (sum(products[gate], torch.zeros(())).sigmoid() for gate in "ifo")
    g = sum(products["g"], torch.zeros(())).tanh()
    c, cells = torch.zeros_like(h[0]), []
    for t in range(len(h)):
        c = f[t] * c + i[t] * g[t]
        cells.append(c)
    return ["i_t", "f_t", "o_t", "g_t", "c_t", "h_t"], [i, f, o, g, torch.stack(cells), h]


def _list_weights(cell: str) -> str:
    """Return the weights of a cell as lines of a formula, one per gate."""
    lines = []
    for gate, parts in _WEIGHTS[cell].items():
        end = f"_{gate}" if gate else ""
        lines.append("    ".join(f"{name}{end} = {part}" for name, part in zip("UVb", parts)))
    return "\n".join(lines)


def _get_note(cell: str) -> Bilingual:
    """Return the note below the table of a cell."""
    if cell == "gru":
        return get_text("rnn.gru_note")
    return get_text("rnn.lstm_note") if cell == "lstm" else get_text("rnn.sigma_note")


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
