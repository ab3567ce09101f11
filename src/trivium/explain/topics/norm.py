"""Explanation of normalization: LayerNorm, RMSNorm and a textbook variant, on one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trivium.errors import TriviumError
from trivium.explain.page import Bilingual, Formula, Page, Table, get_text
from trivium.nn.norm import LayerNorm, RMSNorm, UnbiasedLayerNorm, build_norm

_NORMS = {
    "LayerNorm": LayerNorm(eps=1e-5),
    "RMSNorm": RMSNorm(eps=1e-6, bias=True),
    "RMSNorm (1 + w)": RMSNorm(eps=1e-6, offset=1),
    "Norm": UnbiasedLayerNorm(),
}


def explain(
    vector: list[float] | None = None, *, weight: str | None = None, bias: str | None = None
) -> Page:
    """Normalize one vector with each type of normalization layer that Trivium's models use.

    Args:
        vector: The numbers of the vector, at least two. Default: 1 2 3 6.
        weight: The trained factors, one per number, separated by spaces. Default: 1.
        bias: The trained shifts, one per number, separated by spaces. Default: 0.
    """
    vector = vector or [1.0, 2.0, 3.0, 6.0]
    if len(vector) < 2:
        raise TriviumError(f"normalization needs at least two numbers, not {len(vector)}.")
    x = torch.tensor(vector, dtype=torch.float64)
    mean, square, unbiased = x.mean().item(), x.square().mean().item(), x.std().item()
    factors = _read_numbers("weight", weight, len(x), 1.0)
    shifts = _read_numbers("bias", bias, len(x), 0.0)
    results = {}
    with torch.no_grad():
        for name, norm in _NORMS.items():
            module = build_norm(norm, len(x)).double()
            _set_weights(module, factors, shifts, offset=name.endswith("(1 + w)"))
            results[name] = module(x).tolist()
    numbers: list[list[float | Bilingual]] = [
        [get_text("norm.mean"), mean],
        [get_text("norm.deviation"), x.std(correction=0).item()],
        [get_text("norm.unbiased_deviation"), unbiased],
        [get_text("norm.root_mean_square"), square**0.5],
    ]
    start, given = get_text("norm.start_note"), get_text("norm.weights_note")
    columns = [get_text("norm.norm"), *(f"x{i}" for i in range(1, len(x) + 1))]
    ratio = ((len(x) - 1) / len(x)) ** 0.5
    return Page(
        get_text("norm.normalization_one_vector"),
        [
            Formula(
                "LayerNorm(x) = (x - mean) / sqrt(variance + eps) * weight + bias\n"
                "Norm(x)      = (x - mean) / (deviation + eps) * weight + bias\n"
                "RMSNorm(x)   = x / sqrt(mean(x^2) + eps) * weight + bias"
            ),
            Table([get_text("norm.x"), ""], numbers),
            Table(columns, [["x", *map(float, vector)], *([k, *v] for k, v in results.items())]),
            start if weight is None and bias is None else given,
            get_text("norm.textbook_note", ratio=ratio),
        ],
        {"x": vector, "mean": mean, "rms": square**0.5, "results": results},
    )


def _read_numbers(name: str, text: str | None, count: int, default: float) -> Tensor:
    """Return the numbers of an option as float64 [count].

    Args:
        name: the name of the option, for the error.
        text: numbers separated by spaces; None: `default` for all.
        count: the number of numbers that are needed.
        default: the value without the option.

    Raises:
        TriviumError: the text does not contain `count` numbers.
    """
    if text is None:
        return torch.full((count,), default, dtype=torch.float64)
    try:
        numbers = [float(part) for part in text.split()]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise TriviumError(
            f'{name} is "{text}": give {count} numbers separated by spaces, one per number of the '
            "vector."
        )
    return torch.tensor(numbers, dtype=torch.float64)


def _set_weights(module: nn.Module, factors: Tensor, shifts: Tensor, *, offset: bool) -> None:
    """Set the factors and shifts of a norm; RMSNorm (1 + w), which stores w, has no shift."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.copy_(shifts)
        else:
            parameter.copy_(factors - 1 if offset else factors)
