"""Packed and 8-bit linear layers against `nn.Linear`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from trivium.nn.packed_linear import Int8Linear, PackedLinear


def test_packed_products_are_those_of_the_matrix():
    for dtype in (torch.float32, torch.bfloat16):
        for outputs, inputs in ((13, 37), (64, 32)):
            weight, bias = (
                torch.randn(outputs, inputs, dtype=dtype),
                torch.randn(outputs, dtype=dtype),
            )
            if not PackedLinear.supports(weight):
                assert dtype == torch.bfloat16  # a CPU without such products
                continue
            for shape in ((inputs,), (5, inputs), (2, 3, inputs)):
                x = torch.randn(shape, dtype=dtype)
                for b in (bias, None):
                    terms = [each.double() for each in (x, weight, *([] if b is None else [b]))]
                    exact, sizes = F.linear(*terms), F.linear(*(term.abs() for term in terms))
                    with torch.inference_mode():
                        error = (PackedLinear(weight, b)(x).double() - exact).abs()
                    # Of sums of so many products, in any order (Higham 2002, equation 3.5).
                    assert (error <= (inputs + 2) * torch.finfo(dtype).eps * sizes).all()


def test_packing_is_for_a_cpu_and_whole_precisions():
    assert not PackedLinear.supports(torch.empty(3, 5, device="meta"))
    assert not PackedLinear.supports(torch.empty(3, 5, dtype=torch.float64))


def test_int8_rounds_each_output_by_its_own_scale():
    """With the kernel (inputs a multiple of 32) and without, to half a step of the scale."""
    for outputs, inputs in ((13, 37), (17, 64)):
        weight = torch.randn(outputs, inputs) * torch.logspace(-3, 3, outputs)[:, None]
        weight[5] = 0.0
        layer = Int8Linear(weight, torch.ones(outputs))
        step = weight.abs().amax(1) / 127
        matrix = layer(torch.eye(inputs)).T - 1.0
        error = (matrix - weight).abs()
        assert (error <= 0.51 * step[:, None] + 1e-6 * step.max()).all()
        for rows in (3, 0):  # none: of an expert that no token chose
            assert layer(torch.randn(2, rows, inputs)).shape == (2, rows, outputs)
        x, low = torch.randn(4, inputs, dtype=torch.bfloat16), weight.bfloat16()
        y, expected = Int8Linear(low)(x), F.linear(x, low)
        assert y.dtype == torch.bfloat16
        assert ((y - expected).abs().amax(0) <= 0.05 * expected.abs().amax(0) + 1e-6).all()
