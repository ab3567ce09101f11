"""LayerNorm, a textbook's Norm and RMSNorm of one vector."""

from __future__ import annotations

import torch

from trivium import spec
from trivium.errors import TriviumError
from trivium.explain.page import Bilingual, Formula, Page, Table
from trivium.nn.norm import build_norm

SUMMARY = Bilingual("what normalization makes of a vector", "归一化把一个向量变成什么")

_NORMS = {
    "LayerNorm": spec.LayerNorm(eps=1e-5),
    "RMSNorm": spec.RMSNorm(eps=1e-6),
    "RMSNorm (1 + w)": spec.RMSNorm(eps=1e-6, offset=1),
    "Norm": spec.DeviationNorm(),
}


def explain(vector: list[float] | None = None) -> Page:
    """Normalize one vector in every way that the models here have.

    Args:
        vector: Its numbers, two at least. Default: 1 2 3 6.
    """
    vector = vector or [1.0, 2.0, 3.0, 6.0]
    if len(vector) < 2:
        raise TriviumError(f"normalization needs a vector of two numbers, not {len(vector)}.")
    x = torch.tensor(vector, dtype=torch.float64)
    mean, square, unbiased = x.mean().item(), x.square().mean().item(), x.std().item()
    with torch.no_grad():
        results = {
            name: build_norm(norm, len(x)).double()(x).tolist() for name, norm in _NORMS.items()
        }
    numbers: list[list[float | Bilingual]] = [
        [Bilingual("mean", "均值"), mean],
        [Bilingual("standard deviation, / n", "标准差（除以 n）"), x.std(correction=0).item()],
        [Bilingual("standard deviation, / (n - 1)", "标准差（除以 n - 1）"), unbiased],
        [Bilingual("root mean square", "均方根"), square**0.5],
    ]
    columns = [Bilingual("norm", "归一化"), *(f"x{i}" for i in range(1, len(x) + 1))]
    ratio = ((len(x) - 1) / len(x)) ** 0.5
    return Page(
        Bilingual("Normalization of one vector", "一个向量的归一化"),
        [
            Formula(
                "LayerNorm(x) = (x - mean) / sqrt(variance + eps) * weight + bias\n"
                "Norm(x)      = (x - mean) / (deviation + eps) * weight + bias\n"
                "RMSNorm(x)   = x / sqrt(mean(x^2) + eps) * weight"
            ),
            Table([Bilingual("of x", "x 的统计量"), ""], numbers),
            Table(columns, [["x", *map(float, vector)], *([k, *v] for k, v in results.items())]),
            Bilingual(
                "At the start of training weights are 1 (or 0, where 1 + w is multiplied) and "
                "biases 0, so all that is seen here is the scale. RMSNorm leaves the mean where it "
                "is.",
                "训练开始时权重为 1（乘以 1 + w 时 w 为 0）、偏置为 0，所以这里只能看到平移和缩放。"
                "RMSNorm 不减均值。",
            ),
            Bilingual(
                "Norm is the class of textbook listings: x.std() divides by n - 1, and eps is "
                f"added to the deviation. Its numbers are those of LayerNorm times {ratio:.4f} = "
                "sqrt((n - 1) / n), which no longer counts where n is 512.",
                "Norm 是教材代码中的写法：x.std() 除以 n - 1，eps 加在标准差上。"
                f"其结果等于 LayerNorm 的结果乘以 sqrt((n - 1) / n) = {ratio:.4f}；"
                "n 为 512 时两者几乎没有差别。",
            ),
        ],
        {"x": vector, "mean": mean, "rms": square**0.5, "results": results},
    )
