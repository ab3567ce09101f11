"""Float64 on both sides: what equals a reference to 1e-9 here does so on every CPU.

Kernels of different CPUs round float32 differently, by more than many a real fault. Models and
`transformers` alike compute norms, softmax and angles in float32, whatever their weights are in;
here these are float64, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# What has to be float32 or bfloat16 is compared with float64 of the same weights, relative to the
# largest number. A fault moves that by per cents and more; rounding moves these small models by
# 1e-6 to 1e-4 in float32 and by a hundredth in bfloat16, depending on the CPU.
FLOAT32, BFLOAT16 = 1e-3, 0.1

# Functions that are given a dtype; not those that read bytes, as `torch.frombuffer`.
_TAKE_DTYPE = {
    Tensor.to,
    Tensor.new_zeros,
    Tensor.softmax,
    Tensor.type,
    torch.arange,
    torch.empty,
    torch.full,
    torch.ones,
    torch.softmax,
    torch.tensor,
    torch.zeros,
    torch.zeros_like,
    torch.nn.functional.softmax,
    torch.nn.functional.log_softmax,
}


class _Float64(TorchFunctionMode):
    """Replaces float32 by float64 wherever it is asked for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            return args[0].double()
        if func in _TAKE_DTYPE:
            args = [torch.float64 if value is torch.float32 else value for value in args]
            if kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def relative_error(actual: Tensor, exact: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    exact = exact.detach().double()
    error = (actual.detach().double() - exact).abs().max()
    return float(error / exact.abs().max().clamp(min=1e-300))


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """New tensors are float64, and so is what is asked for in float32."""
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64():
            yield
    finally:
        torch.set_default_dtype(torch.float32)
