"""Explanation of normalization: LayerNorm, RMSNorm and a textbook variant, on one vector."""

from __future__ import annotations

import torch

from trivium.errors import TriviumError
from trivium.explain.page import Bilingual, Formula, Page, Table, get_text
from trivium.nn.norm import LayerNorm, RMSNorm, UnbiasedLayerNorm, build_norm

_NORMS = {
    "LayerNorm": LayerNorm(eps=1e-5),
    "RMSNorm": RMSNorm(eps=1e-6),
    "RMSNorm (1 + w)": RMSNorm(eps=1e-6, offset=1),
    "Norm": UnbiasedLayerNorm(),
}


def explain(vector: list[float] | None = None) -> Page:
    """Normalize one vector with each type of normalization layer that Trivium's models use.

    Args:
        vector: The numbers of the vector, at least two. Default: 1 2 3 6.
    """
    vector = vector or [1.0, 2.0, 3.0, 6.0]
    if len(vector) < 2:
        raise TriviumError(f"normalization needs at least two numbers, not {len(vector)}.")
    x = torch.tensor(vector, dtype=torch.float64)
    mean, square, unbiased = x.mean().item(), x.square().mean().item(), x.std().item()
    with torch.no_grad():
        results = {
            name: build_norm(norm, len(x)).double()(x).tolist() for name, norm in _NORMS.items()
        }
    numbers: list[list[float | Bilingual]] = [
        [get_text("norm.mean"), mean],
        [get_text("norm.deviation"), x.std(correction=0).item()],
        [get_text("norm.unbiased_deviation"), unbiased],
        [get_text("norm.root_mean_square"), square**0.5],
    ]
    columns = [get_text("norm.norm"), *(f"x{i}" for i in range(1, len(x) + 1))]
    ratio = ((len(x) - 1) / len(x)) ** 0.5
    return Page(
        get_text("norm.normalization_one_vector"),
        [
            Formula(
                "LayerNorm(x) = (x - mean) / sqrt(variance + eps) * weight + bias\n"
                "Norm(x)      = (x - mean) / (deviation + eps) * weight + bias\n"
                "RMSNorm(x)   = x / sqrt(mean(x^2) + eps) * weight"
            ),
            Table([get_text("norm.x"), ""], numbers),
            Table(columns, [["x", *map(float, vector)], *([k, *v] for k, v in results.items())]),
            get_text("norm.start_note"),
            get_text("norm.textbook_note", ratio=ratio),
        ],
        {"x": vector, "mean": mean, "rms": square**0.5, "results": results},
    )
