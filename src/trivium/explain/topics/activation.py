"""ReLU, GELU and Swish as curves."""

from __future__ import annotations

import torch

from trivium import spec
from trivium.errors import TriviumError
from trivium.explain.page import Bilingual, Curves, Formula, Page, Table
from trivium.nn.activations import build_activation

SUMMARY = Bilingual("Swish, GELU and ReLU as curves", "激活函数 Swish、GELU 与 ReLU 的曲线")

_POINTS = (-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0)


def explain(betas: list[float] | None = None) -> Page:
    """Draw the activations of feed-forward networks.

    Args:
        betas: Those of Swish, x * sigmoid(beta x). Default: 0.1 1 10.
    """
    betas = betas or [0.1, 1.0, 10.0]
    if min(betas) <= 0:
        raise TriviumError(f"beta is {min(betas):g}, but Swish needs one above 0: give 0.1 1 10.")
    x = torch.arange(-80, 81, dtype=torch.float64) / 20
    gelus = {
        "GELU": build_activation("gelu"),
        "GELU (tanh)": build_activation("gelu_tanh"),
        "ReLU": build_activation("relu"),
    }
    swishes = {f"Swish, beta = {b:g}": build_activation(spec.Swish(beta=b)) for b in betas}
    functions = swishes | gelus
    values = {name: function(x).tolist() for name, function in functions.items()}
    points = torch.tensor(_POINTS, dtype=torch.float64)
    rows = [[name, *function(points).tolist()] for name, function in functions.items()]
    lowest = min(zip(values["GELU"], x.tolist()))
    apart = max(abs(a - b) for a, b in zip(values["GELU"], values["GELU (tanh)"]))
    return Page(
        Bilingual("Activations", "激活函数"),
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
                Bilingual("Swish and ReLU", "Swish 与 ReLU"),
            ),
            Bilingual(
                "Near beta = 0 Swish is the straight line x / 2, for large beta it is ReLU. With "
                "beta = 1, as in LLaMA, it is smooth, and falls before it rises.",
                "β 趋近于 0 时 Swish 趋近于直线 x / 2（有的教材写作 y = x），β 很大时趋近于 ReLU；"
                "β = 1 时（LLaMA 所用，即 SiLU）它光滑而不单调：先下降，后上升。",
            ),
            Curves(
                x.tolist(),
                {name: values[name] for name in gelus},
                "x",
                Bilingual("GELU and ReLU", "GELU 与 ReLU"),
            ),
            Bilingual(
                f"GELU is lowest near x = {lowest[1]:.2f}, at {lowest[0]:.3f}. The tanh formula "
                f"differs from it by {apart:.1e} at most. In transformers BERT has the exact one, "
                "GPT-2 that of tanh.",
                f"GELU 在 x = {lowest[1]:.2f} 附近取最小值 {lowest[0]:.3f}。tanh 近似式与精确式"
                f"至多相差 {apart:.1e}。在 transformers 库中，BERT 用精确式，GPT-2 用近似式。",
            ),
            Table(["x", *(f"{point:g}" for point in _POINTS)], rows),
        ],
        {"x": x.tolist(), "values": values},
    )
