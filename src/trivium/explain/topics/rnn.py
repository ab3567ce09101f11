"""A recurrent network step by step, and how far gradients reach in three kinds of cells."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trivium import spec
from trivium.explain.page import Bilingual, Curves, Formula, Heading, Page, Table
from trivium.models import RecurrentModel, build
from trivium.nn.recurrent import RecurrentLayers

SUMMARY = Bilingual("an RNN step by step, and its gradients", "循环神经网络：逐步计算与梯度消失")

_WIDTH, _ROWS = 64, 16
_U, _V, _B = [[0.5, 0.25], [-0.25, 0.5]], [[1.0], [0.5]], [0.0, 0.1]


def explain(sequence: list[float] | None = None, *, distance: int = 60, seed: int = 0) -> Page:
    """Compute the hidden states of a sequence, and measure how gradients fall with distance.

    Args:
        sequence: One number a step. Default: 1 0 0 0.
        distance: How far back gradients are measured, in steps.
        seed: Of the weights and the inputs that they are measured on.
    """
    sequence = sequence or [1.0, 0.0, 0.0, 0.0]
    layers = RecurrentLayers(_spec("elman", d_model=1, d_hidden=2)).double()
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
        Bilingual("simple RNN", "简单 RNN"): _gradients("elman", distance, seed),
        "GRU": _gradients("gru", distance, seed),
        Bilingual("LSTM, forget bias 1", "LSTM，遗忘门偏置 1"): _gradients("lstm", distance, seed),
        Bilingual("LSTM, forget bias 5", "LSTM，遗忘门偏置 5"): _gradients(
            "lstm", distance, seed, 5.0
        ),
    }
    steps = range(distance + 1)
    return Page(
        Bilingual("A recurrent network", "循环神经网络"),
        [
            Formula(
                f"h_t = sigma(U h_(t-1) + V x_t + b),    h_0 = 0\nU = {_U}    V = {_V}    b = {_B}"
            ),
            Table(["t", "x_t", "U h_(t-1)", "V x_t", "h_t"], rows),
            Bilingual(
                "Here sigma is tanh, as in most networks in use. A textbook names the logistic "
                "function, whose slope is 1/4 at most, and ReLU.",
                "这里的 sigma 取 tanh，实际使用的网络大多如此；教材举出的是逻辑函数和 ReLU，"
                "其中逻辑函数的斜率不超过 1/4，梯度消失得更快。",
            ),
            Heading(Bilingual("How far a gradient reaches", "梯度能传多远")),
            Formula("|| d h_T / d x_(T-k) ||  /  || d h_T / d x_T ||"),
            Curves(
                list(steps),
                {name: [one.log10().item() for one in norm] for name, norm in norms.items()},
                Bilingual("distance k", "距离 k"),
                Bilingual(
                    f"log10 of the gradient's norm, {_WIDTH} cells, before training",
                    f"梯度范数的 log10（{_WIDTH} 个单元，训练之前）",
                ),
            ),
            Bilingual(
                "Every step multiplies by U and the slope of sigma: in a simple RNN the gradient "
                "vanishes. An LSTM adds to its cell and multiplies by its forget gate alone; where "
                "it learns to keep the gate open, which a bias of 5 imitates, the gradient stays.",
                "在简单 RNN 中，梯度每往回传一步都要乘以 U 和 sigma 的斜率，很快就消失了。"
                "LSTM 的记忆单元以加法更新，往回传时只乘以遗忘门；学会让遗忘门保持打开之后"
                "（这里用偏置 5 模拟），梯度就能保留下来。",
            ),
        ],
        {
            "hidden": h.tolist(),
            "gradient_norms": {
                name.en if isinstance(name, Bilingual) else name: norm.tolist()
                for name, norm in norms.items()
            },
        },
    )


def _spec(cell: Literal["elman", "lstm", "gru"], d_model: int, d_hidden: int) -> spec.RNNSpec:
    return spec.RNNSpec(vocab_size=2, d_model=d_model, cell=cell, d_hidden=d_hidden, num_layers=1)


def _gradients(
    cell: Literal["elman", "lstm", "gru"], distance: int, seed: int, forget: float | None = None
) -> Tensor:
    """The norm of d (w . h_T) / d x_(T-k) for k = 0, 1, ..., of a random w: float64 [distance + 1].

    It is a mean of several sequences, divided by that of k = 0.
    """
    model = build(_spec(cell, _WIDTH, _WIDTH), seed=seed).double()
    assert isinstance(model, RecurrentModel)
    if forget is not None:
        model.rnn.layers.cells.get_parameter("bias_ih_l0").data[_WIDTH : 2 * _WIDTH] = forget
    generator = torch.Generator().manual_seed(seed)
    shape = _ROWS, distance + 1, _WIDTH
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(_ROWS, _WIDTH, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((model.rnn.layers(x)[0][:, -1] * w).sum(), x)
    norm = gradient.norm(dim=-1).mean(0).flip(0)
    return norm / norm[0]
