"""A SwiGLU network of one small vector step by step, beside one with ReLU."""

from __future__ import annotations

import torch
from torch import nn

from trivium import spec
from trivium.explain.page import Bilingual, Formula, Grid, Heading, Page, Table, say
from trivium.nn.feed_forwards.feed_forward import FeedForwardNetwork

SUMMARY = Bilingual("a feed-forward network step by step", "逐步计算前馈层：ReLU 与 SwiGLU")

_HIDDEN = 4


def explain(vector: list[float] | None = None, *, width: int = 4096, seed: int = 0) -> Page:
    """Compute a feed-forward network of one vector, with ReLU and with SwiGLU.

    Args:
        vector: Its numbers. Default: 1 -1 2.
        width: d_model of the model whose parameters are counted.
        seed: Of the weights, which are drawn and rounded.
    """
    vector = vector or [1.0, -1.0, 2.0]
    x = torch.tensor(vector, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    relu = _network(len(x), "relu", False, generator)
    swiglu = _network(len(x), "silu", True, generator)
    assert swiglu.gate is not None
    with torch.no_grad():
        up, gate, value = relu.up(x), swiglu.gate(x), swiglu.up(x)
        steps = {
            "ReLU": [
                ("x W_1", up),
                ("ReLU(x W_1)", relu.activation(up)),
                ("FFN(x) = ReLU(x W_1) W_2", relu(x)[0]),
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
        Bilingual("The feed-forward network of one vector", "一个向量经过前馈层"),
        [
            Formula(
                "FFN_ReLU(x)   = max(0, x W_1) W_2\n"
                "FFN_SwiGLU(x) = (Swish(x W) * x V) W_2    Swish(z) = z * sigmoid(z)"
            ),
            Formula(f"x = {say(vector, 'en')}"),
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
            Bilingual(
                "ReLU cuts off what is negative. In SwiGLU one product decides how much of the "
                "other passes; a negative gate lets a little through, with the other sign.",
                "ReLU 把负数截断为 0。SwiGLU 用一个线性变换（门）决定另一个线性变换通过多少；"
                "门为负时仍有少量以相反的符号通过。",
            ),
            Heading(
                Bilingual(
                    f"Parameters of a layer, d = {width}", f"一层前馈层的参数量（d = {width}）"
                )
            ),
            Table(
                ["", Bilingual("formula", "公式"), "d_ff", Bilingual("parameters", "参数量")],
                counts,
            ),
            Bilingual(
                "With three matrices in place of two, d_ff is 2/3 of 4 d for the same number of "
                f"parameters; LLaMA rounds up to a multiple of 256: {d_ff:,}.",
                "SwiGLU 有三个矩阵而不是两个，要保持参数量不变，d_ff 取 4d 的 2/3；"
                f"LLaMA 再向上取到 256 的倍数：{d_ff}。",
            ),
        ],
        {name: {what: row.tolist() for what, row in rows} for name, rows in steps.items()},
    )


def _network(
    width: int, activation: str, gated: bool, generator: torch.Generator
) -> FeedForwardNetwork:
    """A network with weights of one decimal, without biases."""
    part = spec.FeedForward(d_ff=_HIDDEN, activation=activation, gated=gated, bias=False)
    network = FeedForwardNetwork(part, width).double()
    for weight in network.parameters():
        nn.init.normal_(weight, generator=generator)
        weight.data.round_(decimals=1)
    return network
