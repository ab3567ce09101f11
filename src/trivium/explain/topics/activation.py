"""Explanation of the activation functions ReLU, GELU and Swish."""

from __future__ import annotations

import torch

from trivium.errors import TriviumError
from trivium.explain.page import Curves, Formula, Page, Table, get_text
from trivium.nn.activations import Swish, build_activation

_POINTS = (-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0)


def explain(betas: list[float] | None = None) -> Page:
    """Plot the activation functions of feed-forward networks.

    Args:
        betas: Values of beta in Swish, x * sigmoid(beta x). Default: 0.1 1 10.
    """
    betas = betas or [0.1, 1.0, 10.0]
    if min(betas) <= 0:
        raise TriviumError(
            f"beta is {min(betas):g}, but must be above 0: give, for example, 0.1 1 10."
        )
    x = torch.arange(-80, 81, dtype=torch.float64) / 20
    gelus = {
        "GELU": build_activation("gelu"),
        "GELU (tanh)": build_activation("gelu_tanh"),
        "ReLU": build_activation("relu"),
    }
    swishes = {f"Swish, beta = {b:g}": build_activation(Swish(beta=b)) for b in betas}
    functions = swishes | gelus
    values = {name: function(x).tolist() for name, function in functions.items()}
    points = torch.tensor(_POINTS, dtype=torch.float64)
    rows = [[name, *function(points).tolist()] for name, function in functions.items()]
    lowest = min(zip(values["GELU"], x.tolist()))
    difference = max(abs(a - b) for a, b in zip(values["GELU"], values["GELU (tanh)"]))
    return Page(
        get_text("activation.activations"),
        [
            Formula(
                "ReLU(x)      = max(0, x)\n"
                "Swish_b(x)   = x * sigmoid(b x);  b = 1: SiLU\n"
                "GELU(x)      = x * P(X <= x),  X ~ N(0, 1)\n"
                "GELU_tanh(x) = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"
            ),
            Curves(
                x.tolist(),
                {name: values[name] for name in (*swishes, "ReLU")},
                "x",
                get_text("activation.swish_relu"),
            ),
            get_text("activation.swish_note"),
            Curves(
                x.tolist(),
                {name: values[name] for name in gelus},
                "x",
                get_text("activation.gelu_relu"),
            ),
            get_text("activation.gelu_note", x=lowest[1], y=lowest[0], difference=difference),
            Table(["x", *(f"{point:g}" for point in _POINTS)], rows),
        ],
        {"x": x.tolist(), "values": values},
    )
