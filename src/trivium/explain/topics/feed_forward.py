"""Explanation of feed-forward networks: ReLU and SwiGLU on a small vector, step by step."""

from __future__ import annotations

import torch
from torch import nn

from trivium.explain.page import Formula, Grid, Heading, Page, Table, get_text, render
from trivium.nn.feed_forwards.mlp import MLP, MLPModule

_HIDDEN = 4


def explain(vector: list[float] | None = None, *, width: int = 4096, seed: int = 0) -> Page:
    """Compute a feed-forward network for one vector, with ReLU and with SwiGLU.

    Args:
        vector: The numbers of the vector. Default: 1 -1 2.
        width: The model width (d_model) for which to count the parameters.
        seed: Random seed of the weights.
    """
    vector = vector or [1.0, -1.0, 2.0]
    x = torch.tensor(vector, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    relu = _build_network(len(x), "relu", False, generator)
    swiglu = _build_network(len(x), "silu", True, generator)
    assert swiglu.gate is not None
    for layer in (relu.up, relu.down):
        nn.init.normal_(layer.bias, generator=generator)
        layer.bias.data.round_(decimals=1)
    with torch.no_grad():
        up, gate, value = relu.up(x), swiglu.gate(x), swiglu.up(x)
        steps = {
            "ReLU": [
                ("x W_1 + b_1", up),
                ("ReLU(x W_1 + b_1)", relu.activation(up)),
                ("FFN(x) = ReLU(x W_1 + b_1) W_2 + b_2", relu(x)[0]),
            ],
            "SwiGLU": [
                ("x W", gate),
                ("Swish(x W)", swiglu.activation(gate)),
                ("x V", value),
                ("Swish(x W) * x V", swiglu.activation(gate) * value),
                ("FFN(x) = (Swish(x W) * x V) W_2", swiglu(x)[0]),
            ],
        }
    tables = [
        Table([name, ""], [[what, row.tolist()] for what, row in rows])
        for name, rows in steps.items()
    ]
    d_ff = -(-8 * width // (3 * 256)) * 256
    counts = [
        [name, f"{n} d d_ff", size, f"{n * width * size:,}"]
        for name, n, size in (("ReLU", 2, 4 * width), ("SwiGLU", 3, 4 * width), ("SwiGLU", 3, d_ff))
    ]
    return Page(
        get_text("feed_forward.feed_forward_network_one"),
        [
            Formula(
                "FFN_ReLU(x)   = max(0, x W_1 + b_1) W_2 + b_2\n"
                "FFN_SwiGLU(x) = (Swish(x W) * x V) W_2    Swish(z) = z * sigmoid(z)"
            ),
            Formula(
                f"x   = {render(vector, 'en')}\n"
                f"b_1 = {render(relu.up.bias.tolist(), 'en')}\n"
                f"b_2 = {render(relu.down.bias.tolist(), 'en')}"
            ),
            *(
                Grid(matrix.weight.T.tolist(), caption=name)
                for name, matrix in (
                    ("W_1", relu.up),
                    ("W_2", relu.down),
                    ("W", swiglu.gate),
                    ("V", swiglu.up),
                    ("W_2, SwiGLU", swiglu.down),
                )
            ),
            *tables,
            get_text("feed_forward.gate_note"),
            Heading(get_text("feed_forward.parameters_layer_d", width=width)),
            Table(["", get_text("shared.formula"), "d_ff", get_text("shared.parameters")], counts),
            get_text("feed_forward.width_note", d_ff=d_ff),
        ],
        {name: {what: row.tolist() for what, row in rows} for name, rows in steps.items()},
    )


def _build_network(
    width: int, activation: str, gated: bool, generator: torch.Generator
) -> MLPModule:
    """Build a feed-forward network with random matrices, rounded to one decimal.

    A network without a gate also has biases, which are 0.
    """
    part = MLP(d_ff=_HIDDEN, activation=activation, gated=gated, bias=not gated)
    network = MLPModule(part, width).double()
    for weight in network.parameters():
        if weight.ndim == 1:
            nn.init.zeros_(weight)
            continue
        nn.init.normal_(weight, generator=generator)
        weight.data.round_(decimals=1)
    return network
