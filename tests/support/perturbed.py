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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

VARIABLE = "TRIVIUM_TEST_PERTURB"
# Relative to an element; numbers of half precision move by their own rounding.
SIZES = {torch.float64: 1e-15, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
_RANDOM = np.random.default_rng(0).uniform(-0.5, 0.5, 1_000_003)
_UP_OR_DOWN = torch.from_numpy(_RANDOM + np.copysign(0.5, _RANDOM))
# Near one; a result takes some that stand together.
_FACTORS = {dtype: (1.0 + size * _UP_OR_DOWN).to(dtype) for dtype, size in SIZES.items()}

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
    (torch.nn.functional, (*_CONVOLUTIONS, "linear", "bilinear", "scaled_dot_product_attention")),
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
        seed = _seed(0, (*args, *kwargs.values()))
        result = exact(*args, **kwargs)
        if seed is not None:
            _move(result, seed)
        return result

    product.exact = exact  # type: ignore[attr-defined]
    return product


def _seed(seed: int, operands: Iterable[Any]) -> int | None:
    """Return a hash of all operands (types, shapes and every bit), None if one has no numbers."""
    for each in operands:
        if isinstance(each, Tensor):
            if not _has_numbers(each):
                return None
            seed = zlib.crc32(f"{each.dtype} {each.shape}".encode(), seed)
            bits = each.detach().contiguous().reshape(-1).view(torch.uint8)
            seed = zlib.crc32(memoryview(bits.numpy()), seed)
        elif isinstance(each, list | tuple):
            inner = _seed(seed, each)
            if inner is None:
                return None
            seed = inner
        else:
            seed = zlib.crc32(repr(each).encode(), seed)
    return seed


def _has_numbers(tensor: Tensor) -> bool:
    """Whether the tensor holds numbers of its own: not those on the meta device, nor DTensors."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _move(result: Any, seed: int) -> None:
    """Move every element of the results by half the size to the whole of it, up or down.

    The memory is changed behind autograd's back: nothing more is kept for the backward pass, whose
    memory tests measure.
    """
    if isinstance(result, list | tuple):
        for number, each in enumerate(result):
            _move(each, seed + 97 * number)
    elif isinstance(result, Tensor) and result.dtype in SIZES:
        factors, count = _FACTORS[result.dtype], result.numel()
        if count > len(factors):
            factors = factors.repeat(-(-count // len(factors)) + 1)
        start = seed % (len(factors) - count + 1)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            result.data.mul_(factors[start : start + count].view(result.shape))


if __name__ == "__main__":
    sys.exit("set TRIVIUM_TEST_PERTURB=1, or run tests/cpus.py")
