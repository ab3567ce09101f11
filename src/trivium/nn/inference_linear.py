"""Linear layers for inference alone: their matrices stand in the order that kernels read fastest.

Shape letters: M rows, I inputs, O outputs.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.sums import PlainRows, SummedRows, summed_rows

# Rows that one product takes: more would only need more memory.
_ROWS = 256
# Rows for which a whole matrix is put in order: what fits a few texts fits one as well.
_SEVERAL_ROWS = 8
# Rows that go to their product as they are, whatever their shape.
_FEW_ROWS = 8
# Rows up to which FBGEMM's product is faster than oneDNN's.
_ROWS_BY_HALVES = {torch.bfloat16: 8, torch.float32: 3}
# More rows than this are filled up to a multiple of it.
_STEP = 16


class InferenceLinear(nn.Module, ABC):
    """y = W x + b with W in a form of its own; b and x in whatever precision x has.

    The weights are kept in the order that the kernels of a CPU want where it has some, and are put
    in order again when the module moves.
    """

    bits: int | None = None
    """Bits of a weight, where they are fewer than a number's."""

    number: Tensor
    """What tells a compiled layer which this is: it takes tensors alone."""

    rows: SummedRows | None
    """The matrix for few rows, where compiled sums are kept for these."""

    def __init__(self, out_features: int, in_features: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = out_features, in_features
        self.bias = bias
        self.register_buffer("number", _numbered(self), persistent=False)
        self.register_module("rows", None)

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory of the matrix, in all its forms, and its scales."""

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

    def summed(self, matrix: Tensor | None = None) -> SummedRows | None:
        """The matrix as compiled sums read it, if they are the fastest for few rows.

        Args:
            matrix: it, where somebody has it: [O, I].
        """
        return None

    def keep_rows(self, matrix: Tensor | None = None) -> int:
        """Keep what is `summed`; up to how many rows there are sums (0: there are none)."""
        self.rows = self.summed(matrix)
        return 0 if self.rows is None else self.rows.most

    def __call__(self, x: Tensor) -> Tensor:
        """As `forward`: the look for hooks takes as long as a small operation."""
        if (rows := self.rows) is not None and rows.takes(x):
            return rows.forward(x)
        return self.traced(x) if torch.compiler.is_compiling() else self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] > _ROWS:
            found = torch.cat([self.multiply(part) for part in rows.split(_ROWS)])
        else:
            found = self.multiply(rows)
        return found if x.ndim == 2 else found.view(*x.shape[:-1], self.out_features)

    def traced(self, x: Tensor) -> Tensor:
        """As `forward`, for a compiler: what it cannot look into is one operation, `opaque`."""
        return torch.ops.trivium.inference_linear(x, self.number, self.out_features)

    def opaque(self, x: Tensor) -> Tensor:
        """What `traced` leaves to the kernels: [..., I], or what that makes of it, -> [..., O]."""
        return self.forward(x)

    def plain(self, x: Tensor) -> Tensor:
        """The same by the formula, through the whole matrix: [..., I] -> [..., O]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.whole(x.dtype), bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> InferenceLinear:
        self.unpack()
        self.rows = None
        super()._apply(fn, recurse)
        self.pack()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.number = _numbered(self)  # a copy is a layer of its own

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


# The layers there are: what is compiled knows them by their numbers.
_NUMBERED: WeakValueDictionary[int, InferenceLinear] = WeakValueDictionary()
_NUMBERS = itertools.count()


def _numbered(layer: InferenceLinear) -> Tensor:
    number = next(_NUMBERS)
    _NUMBERED[number] = layer
    return torch.tensor(number)


torch.library.define(
    "trivium::inference_linear", "(Tensor x, Tensor number, int outputs) -> Tensor"
)


@torch.library.impl("trivium::inference_linear", "CompositeExplicitAutograd")
def _inference_linear(x: Tensor, number: Tensor, outputs: int) -> Tensor:
    return _NUMBERED[int(number)].opaque(x)


@torch.library.register_fake("trivium::inference_linear")
def _shape_of_inference_linear(x: Tensor, number: Tensor, outputs: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], outputs))


class PackedLinear(InferenceLinear):
    """The matrix as it is, in the order of oneDNN's or FBGEMM's kernels on a CPU that has them.

    FBGEMM's product with a few rows takes half to three quarters of the time of oneDNN's, so the
    matrix is there in both orders. FBGEMM's 16 bits a weight are those of float16, in which
    numbers of bfloat16 are exact where they matter; one of float32 is the sum of two, exact but
    for its last bit. It adds up in float32, as oneDNN does. Without AVX-512 neither is the faster,
    and there is one order: of oneDNN for float32, of FBGEMM for bfloat16.

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
        if self._packed is None:
            assert self.weight is not None
            return self.weight.nbytes
        return self._packed.num_bytes + (0 if self.rows is None else self.rows.num_bytes)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        packed = self._packed
        if packed is None or x.dtype != torch.float32 or x.numel() > packed.few or x.ndim == 1:
            return super().forward(x)
        return packed.multiply_few(x)

    def summed(self, matrix: Tensor | None = None) -> SummedRows | None:
        """The matrix as it was; FBGEMM's of float32 is given up for it."""
        if self._packed is None or not summed_rows(self._packed.dtype):
            return None
        found = PlainRows(self._packed.weight() if matrix is None else matrix, self.bias)
        self._packed = self._packed.without_halves()
        return found

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
        return self._packed.weight()


class _Packed:
    """A matrix in the order of oneDNN, in that of FBGEMM, or in both; neither changes."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.dtype, self.num_bytes, inputs = weight.dtype, 0, weight.shape[1]
        self.matrix, self.halves, self.factors = None, None, None
        if _has_half_products(self.dtype) and (found := _halves(weight)) is not None:
            halves, self.factors = found
            added = None if bias is None else bias.detach().float()
            self.halves = torch.ops.quantized.linear_prepack_fp16(halves, added)
            self.num_bytes += weight.nbytes
        # What oneDNN multiplies: 16 bits where there are instructions for them.
        self.taken = self.dtype if _multiplies(self.dtype) else torch.float32
        # Numbers of float32 up to which a product is FBGEMM's, and up to which none is rounded.
        self.by_halves = self.few = sys.maxsize
        if self.halves is None or self.taken == self.dtype:
            self.bias = bias if bias is None or self.taken == self.dtype else bias.to(self.taken)
            whole = weight.to(self.taken)
            self.matrix = torch.ops.mkldnn._reorder_linear_weight(whole, _SEVERAL_ROWS)
            self.num_bytes += whole.nbytes
            self.by_halves = 0 if self.halves is None else _ROWS_BY_HALVES[self.dtype] * inputs
            exact = self.taken == torch.float32 or self.halves is not None
            self.few = _FEW_ROWS * inputs if exact else 0

    def weight(self) -> Tensor:
        """The matrix in an order that means the same everywhere: [O, I]."""
        if self.matrix is not None:
            return self.matrix.to_dense().to(self.dtype)
        return torch.ops.quantized.linear_unpack_fp16(self.halves)[0].to(self.dtype)

    def without_halves(self) -> _Packed:
        """The same in the order of oneDNN alone, if it is there in that."""
        found = copy.copy(self)
        if self.matrix is not None and self.halves is not None:
            found.halves, found.factors, found.by_halves = None, None, 0
            found.num_bytes = self.matrix.nbytes
        return found

    def multiply_few(self, x: Tensor) -> Tensor:
        """Float32 [..., I] of at most `few` numbers -> [..., O]."""
        if x.numel() > self.by_halves:
            return self._product(x)
        if self.factors is not None:
            x = (x.unsqueeze(-2) * self.factors).flatten(-2)
        return _half_product()(x, self.halves)

    def multiply(self, rows: Tensor) -> Tensor:
        """[M, I] -> [M, O]."""
        given, count = rows.dtype, rows.shape[0]
        if rows.numel() <= self.few:
            return self.multiply_few(rows.float()).to(given)
        if count > _STEP and count % _STEP:
            # For every number of rows oneDNN compiles, and keeps, a kernel.
            whole = rows.new_zeros(count + -count % _STEP, rows.shape[1], dtype=self.taken)
            whole[:count] = rows
            return self._product(whole)[:count].to(given)
        return self._product(rows.to(self.taken)).to(given)

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
    known = weight.dtype in (torch.bfloat16, torch.float32)
    return known and weight.device.type == "cpu" and torch.backends.mkldnn.is_available()


def _multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN has fast products of such numbers on this CPU."""
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _has_half_products(dtype: torch.dtype) -> bool:
    """Whether FBGEMM has products with matrices of 16 bits, for float32 also that they gain."""
    if dtype == torch.float32 and torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    known = "fbgemm" in torch.backends.quantized.supported_engines
    return known and hasattr(torch.ops.quantized, "linear_prepack_fp16")


def _halves(weight: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Numbers of float16 that stand for a matrix: [O, I] -> [O, H I] in float32, factors [H, 1].

    The matrix is the sum of its H parts, each times its factor. No factors: it is the one part.
    Nothing: float16 has not all of them, but for what is next to nothing in its row.
    """
    largest = weight.abs().amax(1, keepdim=True).float()
    if weight.dtype == torch.bfloat16:
        halves = weight.float()
        fits = (halves.half() - halves).abs() <= 2**-12 * largest
        return (halves, None) if bool(fits.all()) else None
    # The first 11 bits of a number, as if the largest were 2^14, and the next 12 of its 24. The
    # small part comes first, so that sums lose less of it.
    unit = 2.0 ** (float(largest.max().clamp_min(2**-100).log2().ceil()) - 14)
    scaled = weight / unit
    first = scaled.half().float()
    second = ((scaled - first) * 2**12).half().float()
    fits = (scaled - first - second / 2**12).abs() <= 2**-23 * largest / unit
    factors = torch.tensor([[2**-12], [1.0]]) * unit
    return (torch.cat((second, first), 1), factors) if bool(fits.all()) else None


def joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, nn.Parameter | None]:
    """The matrix and the bias of layers that read the same, below each other."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return weight, nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
