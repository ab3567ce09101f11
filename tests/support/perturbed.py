"""Products of matrices as another CPU might round them: repeatable, and different for other input.

`TRIVIUM_TEST_PERTURB=1` (one of the settings of `tests/cpus.py`) changes every element of the
result of every function in `PRODUCTS` by about 1e-15 of the element in float64 and 1e-6 in float32.
The changes follow from a hash of all operands. A repeated call therefore returns the same bits, and
a call with any other operand returns other bits everywhere: with one more row in the batch, with
other padding, with a chunk of the columns. A test that asks for equal bits of different
computations fails on every machine.

The functions themselves are replaced, not intercepted by a `TorchFunctionMode`: a mode holds for
one thread, and the server, the loader and autograd have threads of their own. Processes that tests
start are changed by `perturbed_start/sitecustomize.py`. Compiled code keeps its own products.
"""

from __future__ import annotations

import functools
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

VARIABLE = "TRIVIUM_TEST_PERTURB"
# Relative to an element; numbers of half precision move by their own rounding.
SIZES = {torch.float64: 1e-15, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}

_WITH_SUM = ("addmm", "addbmm", "baddbmm", "addmv")
_OF_TWO = ("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner")
_CONVOLUTIONS = (
    *("conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
_RECURRENT = (
    *("lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
_FUSED_LAYERS = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
# Owner of the functions -> their names. `F.multi_head_attention_forward` and `F.linear` of modules
# call these by their names; what is listed twice has one implementation under two owners.
PRODUCTS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        torch,
        (
            *(*_OF_TWO, *_WITH_SUM, *_CONVOLUTIONS, *_RECURRENT, *_FUSED_LAYERS),
            *("einsum", "tensordot", "chain_matmul", "bilinear", "cdist", "convolution"),
        ),
    ),
    (Tensor, (*_OF_TWO, *_WITH_SUM, "__matmul__", *(f"{name}_" for name in _WITH_SUM))),
    (torch.linalg, ("matmul", "multi_dot", "vecdot")),
    (torch._VF, _RECURRENT),
    (
        torch.nn.functional,
        (*_CONVOLUTIONS, "linear", "bilinear", "scaled_dot_product_attention"),
    ),
)


def install() -> None:
    """Replace the functions in this process, and in the Python processes that it will start."""
    start = str(Path(__file__).with_name("perturbed_start"))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if start not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [start, *paths]))
    os.environ[VARIABLE] = "1"
    replace_products()


def replace_products() -> None:
    """Replace the functions in this process, once."""
    for owner, names in PRODUCTS:
        for name in names:
            exact = getattr(owner, name)
            if not hasattr(exact, "exact"):
                setattr(owner, name, perturbed(exact))


def perturbed(exact: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with every element of its results moved a little."""

    @functools.wraps(exact)
    def product(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return exact(*args, **kwargs)
        operands = [*_flat(args), *_flat(kwargs.values())]
        tensors = [each for each in operands if isinstance(each, Tensor)]
        seed = _seed(operands) if all(map(_has_numbers, tensors)) else None
        result = exact(*args, **kwargs)
        if seed is not None:
            for number, each in enumerate(_flat([result])):
                if isinstance(each, Tensor) and each.dtype in SIZES:
                    _move(each, seed + number)
        return result

    product.exact = exact  # type: ignore[attr-defined]
    return product


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _has_numbers(tensor: Tensor) -> bool:
    """Whether the tensor holds numbers of its own: not those on the meta device, nor DTensors."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter)
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return plain and not wrapped and tensor.device.type == "cpu" and tensor.layout is torch.strided


def _seed(operands: list[Any]) -> int:
    """Return a hash of all operands: shapes, types and every bit."""
    seed = 0
    for each in operands:
        if isinstance(each, Tensor):
            seed = zlib.crc32(f"{each.dtype} {[*each.shape]}".encode(), seed)
            bits = each.detach().contiguous().reshape(-1).view(torch.uint8)
            seed = zlib.crc32(memoryview(bits.numpy()), seed)
        else:
            seed = zlib.crc32(repr(each).encode(), seed)
    return seed


def _move(result: Tensor, seed: int) -> None:
    """Move every element by half the size to the whole of it, up or down.

    The memory is changed behind autograd's back: nothing more is kept for the backward pass, whose
    memory tests measure.
    """
    random = np.random.Generator(np.random.SFC64(seed)).uniform(-0.5, 0.5, result.numel())
    factors = 1.0 + SIZES[result.dtype] * (random + np.copysign(0.5, random))
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        result.data.mul_(torch.from_numpy(factors).reshape(result.shape).to(result.dtype))


if __name__ == "__main__":
    sys.exit("set TRIVIUM_TEST_PERTURB=1, or run tests/cpus.py")
