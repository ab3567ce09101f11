"""Linear layers for inference alone: their matrices stand in the order that kernels read fastest.

Shape letters: M rows, I inputs, O outputs.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError

# Rows that one product takes: more would only need more memory.
_ROWS = 256
# Rows for which a whole matrix is put in order: what fits a few texts fits one as well.
_SEVERAL_ROWS = 8
# Rows up to which FBGEMM's product is at least as fast as oneDNN's in bfloat16.
_FEW_ROWS = 8
# More rows than this are filled up to a multiple of it.
_STEP = 16


class InferenceLinear(nn.Module, ABC):
    """y = W x + b with W in a form of its own; b and x in whatever precision x has.

    The weights are kept in the order that the kernels of a CPU want where it has some, and are put
    in order again when the module moves.
    """

    bits: int | None = None
    """Bits of a weight, where they are fewer than a number's."""

    def __init__(self, out_features: int, in_features: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = out_features, in_features
        self.bias = bias

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory of the matrix and its scales."""

    @abstractmethod
    def whole(self, dtype: torch.dtype) -> Tensor:
        """The matrix that this one stands for: [O, I]."""

    @abstractmethod
    def multiply(self, rows: Tensor) -> Tensor:
        """W x + b, the fastest way: [M, I] -> [M, O]."""

    @abstractmethod
    def pack(self) -> None:
        """Put the weights in the order of this device's kernels, if it has some."""

    @abstractmethod
    def unpack(self) -> None:
        """Put the weights in an order that means the same everywhere."""

    def __call__(self, x: Tensor) -> Tensor:
        """As `forward`: the look for hooks takes as long as a small operation."""
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] > _ROWS:
            found = torch.cat([self.multiply(part) for part in rows.split(_ROWS)])
        else:
            found = self.multiply(rows)
        return found if x.ndim == 2 else found.view(*x.shape[:-1], self.out_features)

    def plain(self, x: Tensor) -> Tensor:
        """The same by the formula, through the whole matrix: [..., I] -> [..., O]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.whole(x.dtype), bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> InferenceLinear:
        self.unpack()
        super()._apply(fn, recurse)
        self.pack()
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        raise SpecError(
            "a model with packed or quantised weights cannot be saved or exported: save the one it "
            "was made from, and pack or quantise it when it is loaded."
        )

    def extra_repr(self) -> str:
        """What `print` shows."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        bits = "" if self.bits is None else f", bits={self.bits}"
        return f"{shape}, bias={self.bias is not None}{bits}"


class PackedLinear(InferenceLinear):
    """The matrix as it is, in the order of oneDNN's kernels on a CPU that has them.

    One in bfloat16 is there twice, also in the order of FBGEMM, whose product with a few rows takes
    half to three quarters of the time. Its 16 bits a weight are those of float16, in which numbers
    of bfloat16 are exact where they matter; it adds up in float32, as oneDNN does.

    Args:
        weight: [O, I].
        bias: [O].
    """

    weight: Tensor | None

    def __init__(self, weight: Tensor, bias: nn.Parameter | None = None) -> None:
        super().__init__(weight.shape[0], weight.shape[1], bias)
        self.register_buffer("weight", weight.detach())
        self._packed: _Packed | None = None
        self.pack()

    @property
    def num_bytes(self) -> int:
        """Memory of the matrix, in all its forms."""
        packed, numbers = self._packed, self.out_features * self.in_features
        if packed is None:
            assert self.weight is not None
            return self.weight.nbytes
        return numbers * packed.matrix.dtype.itemsize + (0 if packed.half is None else 2 * numbers)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        packed = self._packed
        if packed is None or x.dtype != torch.float32 or x.numel() > packed.few or x.ndim == 1:
            return super().forward(x)
        return packed.multiply_few(x)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The matrix: [O, I]."""
        return self._weight().to(dtype)

    def multiply(self, rows: Tensor) -> Tensor:
        """W x + b: [M, I] -> [M, O]."""
        if self._packed is not None:
            return self._packed.multiply(rows)
        weight = self._weight()
        bias = None if self.bias is None else self.bias.to(weight.dtype)
        return F.linear(rows.to(weight.dtype), weight, bias).to(rows.dtype)

    def pack(self) -> None:
        """Put the weights in the order of this device's kernels, if it has some."""
        if self.weight is not None and _has_packed_products(self.weight):
            self._packed, self.weight = _Packed(self.weight, self.bias), None

    def unpack(self) -> None:
        """Put the weights in an order that means the same everywhere."""
        self.weight, self._packed = self._weight(), None

    def _weight(self) -> Tensor:
        if self._packed is None:
            assert self.weight is not None
            return self.weight
        return self._packed.matrix.to_dense()


class _Packed:
    """A matrix in the order of oneDNN, and for few rows in that of FBGEMM; neither changes."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias, self.dtype, self.half = bias, weight.dtype, None
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(weight, _SEVERAL_ROWS)
        if weight.dtype == torch.bfloat16 and _has_half_products() and _fits_half(weight):
            self.half = torch.ops.quantized.linear_prepack_fp16(
                weight.float(), None if bias is None else bias.detach().float()
            )
        # Numbers up to which float32 needs nothing done to it before or after its product.
        short = weight.dtype != torch.float32 and self.half is None
        self.few = 0 if short else _FEW_ROWS * weight.shape[1]

    def multiply_few(self, x: Tensor) -> Tensor:
        """Float32 [..., I] of at most `few` numbers -> [..., O]."""
        return self._product(x) if self.half is None else _half_product()(x, self.half)

    def multiply(self, rows: Tensor) -> Tensor:
        """[M, I] -> [M, O]."""
        given, count = rows.dtype, rows.shape[0]
        if rows.numel() <= self.few:
            return self.multiply_few(rows.float()).to(given)
        # For every number of rows oneDNN compiles, and keeps, a kernel.
        if count > _STEP:
            rows = F.pad(rows, (0, 0, 0, -count % _STEP))
        return self._product(rows.to(self.dtype))[:count].to(given)

    def _product(self, x: Tensor) -> Tensor:
        return _pointwise()(x, self.matrix, self.bias, "none", (), "")

    def __deepcopy__(self, memo: dict[int, Any]) -> _Packed:
        return self


@functools.cache
def _half_product() -> Callable[..., Tensor]:
    return kernel(torch.ops.quantized.linear_dynamic_fp16)


@functools.cache
def _pointwise() -> Callable[..., Tensor]:
    return kernel(torch.ops.mkldnn._linear_pointwise)


def kernel(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The operation without the look at its arguments that PyTorch takes in Python each time."""
    return getattr(operation, "_op", operation)


def _has_packed_products(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


def _has_half_products() -> bool:
    known = "fbgemm" in torch.backends.quantized.supported_engines
    return known and hasattr(torch.ops.quantized, "linear_prepack_fp16")


def _fits_half(weight: Tensor) -> bool:
    """Whether float16 has all numbers of a matrix, but for what is next to nothing in its row."""
    weight = weight.float()
    error = (weight.half().float() - weight).abs().amax(1)
    return bool((error <= 2**-12 * weight.abs().amax(1)).all())


def joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, nn.Parameter | None]:
    """The matrix and the bias of layers that read the same, below each other."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return weight, nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
