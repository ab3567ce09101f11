"""Linear layers whose matrices are 8 or 4 bits a weight: decoding reads that much less memory.

Only weights lose precision. For inference alone: nothing here has a gradient.

Shape letters: M rows, I inputs, O outputs, G groups of inputs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.nn.inference_linear import InferenceLinear, kernel
from trivium.nn.sums import ByteRows, SummedRows, summed_rows

Bits = Literal[8, 4]
"""Bits of a weight."""

GROUP = 32
"""Inputs of an output that share a scale and an offset where weights have 4 bits."""

# Outputs of a block in which kernels want their matrices, at most.
_BLOCK = 64
_SMALLEST = 1e-30
# Rows that need not be counted before their product.
_FEW_ROWS = 16
# Inputs more of an integer product: a multiple of what its kernel takes at once.
_ENDS = 4


class Int8Linear(InferenceLinear):
    """W[o, i] = s[o] q[o, i] with integers |q| <= 127.

    On an x86 CPU the product is one of integers: each row of x is rounded to 8 bits too, with a
    step of its own of 1/127 of its largest number. For one row that takes the time of reading the
    weights, and for many it is faster than any other product. Elsewhere x keeps its precision.

    Args:
        weight: [O, I], of any precision.
        bias: [O].
    """

    bits = 8
    codes: Tensor | None
    scale: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None = None) -> None:
        super().__init__(weight.shape[0], weight.shape[1], bias)
        weight = weight.detach().float()
        scale = _round_up(weight.abs().amax(1).clamp(min=_SMALLEST) / 127)
        codes = (weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self._packed: _Packed | None = None
        self.pack()

    @property
    def num_bytes(self) -> int:
        """Memory of the matrix, in all its forms, and its scales."""
        matrix = self.out_features * (self.in_features + self.scale.element_size())
        return matrix + (0 if self.rows is None else self.rows.num_bytes)

    def summed(self, matrix: Tensor | None = None) -> SummedRows | None:
        """The integers in the order of sums."""
        if self._packed is None or not summed_rows(torch.int8):
            return None
        return ByteRows(self._integers(), self.scale, self.bias, self._packed.steps)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        packed = self._packed
        if packed is None or x.dtype != torch.float32 or x.numel() > packed.few or x.ndim == 1:
            return super().forward(x)
        return packed.multiply(x)

    def traced(self, x: Tensor) -> Tensor:
        """As `forward`, for a compiler, which makes one loop of what stands around the product."""
        if self._packed is None:
            return super().traced(x)
        rows = x.float()
        largest = rows.abs().amax(-1, keepdim=True).clamp_min(_SMALLEST)
        ends = [torch.full_like(largest, end) for end in self._packed.ends]
        wide = torch.cat((rows / largest, *ends), -1)
        found = super().traced(wide) * largest
        if self.bias is not None:
            found = found + self.bias * (1.0 - largest)  # the product has it already
        return found.to(x.dtype)

    def opaque(self, x: Tensor) -> Tensor:
        """[..., I], or where weights are in order [..., I + 4] -> [..., O]."""
        return self.forward(x) if self._packed is None else self._packed.product(x)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The matrix that this one stands for: [O, I]."""
        return (self._integers() * self.scale.float()[:, None]).to(dtype)

    def multiply(self, rows: Tensor) -> Tensor:
        """W x + b: [M, I] -> [M, O]."""
        if self._packed is not None:
            return self._packed.multiply(rows.float()).to(rows.dtype)
        # Integers up to 127 are exact in every precision.
        found = F.linear(rows, self._integers().to(rows.dtype)) * self.scale.to(rows.dtype)
        return found if self.bias is None else found + self.bias.to(found.dtype)

    def pack(self) -> None:
        """Put the weights in the order of this device's kernels, if it has some."""
        if self.codes is None or self.codes.device.type != "cpu" or not _has_integer_products():
            return
        self._packed, self.codes = _Packed(self.codes, self.scale, self.bias), None

    def unpack(self) -> None:
        """Put the weights in an order that means the same everywhere."""
        self.codes, self._packed = self._integers(), None

    def _integers(self) -> Tensor:
        if self._packed is None:
            assert self.codes is not None
            return self.codes
        return self._packed.codes()


class _Packed:
    """An int8 matrix in the order of FBGEMM, and how rows of numbers are multiplied with it."""

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        self.bias = None if bias is None else bias.detach().float()
        # Without VNNI sums of two products are kept in 16 bits, too few for numbers of 8.
        told = getattr(torch.cpu, "_is_vnni_supported", None)
        self.narrow = not (told and told())
        self.steps = 63 if self.narrow else 127
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        matrix = F.pad(codes * scale.float()[:, None], (0, _ENDS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch means to drop this kind of tensor some day
            whole = torch.quantize_per_channel(matrix, scale.double(), zeros, 0, torch.qint8)
            self.matrix = torch.ops.quantized.linear_prepack(whole, self.bias)
        self.inputs, self.few = codes.shape[1], _FEW_ROWS * codes.shape[1]
        self.ends = (-(self.steps + 1) / self.steps, 1.0, *[0.0] * (_ENDS - 2))
        self._ends = torch.tensor(self.ends)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Packed:
        """Itself: nothing in it ever changes."""
        return self

    def codes(self) -> Tensor:
        """The integers: int8 [O, I]."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = torch.ops.quantized.linear_unpack(self.matrix)[0].int_repr()
        return whole[:, :-_ENDS].contiguous()

    def product(self, wide: Tensor) -> Tensor:
        """That of integers, with the bias: float32 [..., I + 4] -> [..., O]."""
        return _integer_product()(wide, self.matrix, self.narrow)

    def multiply(self, rows: Tensor) -> Tensor:
        """Float32 [..., I] -> [..., O].

        The kernel has one step for all rows, a 255th from their smallest to their largest number.
        Here a row has its own, a 127th of its largest: rows are divided by that, and behind them
        stand -128/127 and 1, which meet weights of 0. A single row has these times its largest.
        """
        largest = rows.abs().amax(-1, keepdim=True)
        if rows.numel() == self.inputs:
            return self.product(torch.cat((rows, self._ends * largest), -1))
        largest.clamp_(min=_SMALLEST)
        ends = self._ends.expand(*rows.shape[:-1], _ENDS)
        found = self.product(torch.cat((rows / largest, ends), -1))
        # The kernel has added the bias already: b + largest * (found - b).
        return found.mul_(largest) if self.bias is None else self.bias.lerp(found, largest)


@functools.cache
def _integer_product() -> Callable[..., Tensor]:
    return kernel(torch.ops.quantized.linear_dynamic)


class Int4Linear(InferenceLinear):
    """W[o, i] = s[o, g] (q[o, i] - 8) + z[o, g] with q from 0 to 15, g the group of input i.

    On a CPU rows are multiplied in bfloat16 by PyTorch's own kernel: fastest of all for one row,
    slower than whole matrices for many. Elsewhere the matrix is made again.

    Args:
        weight: [O, I], of any precision.
        bias: [O].
    """

    bits = 4
    codes: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None = None) -> None:
        super().__init__(weight.shape[0], weight.shape[1], bias)
        # The kernel takes whole groups of inputs and whole blocks of outputs.
        self.missing = -self.in_features % GROUP
        grouped = weight.detach().float()
        grouped = F.pad(grouped, (0, self.missing, 0, -self.out_features % _BLOCK))
        grouped = grouped.unflatten(1, (-1, GROUP))
        low, high = grouped.aminmax(dim=2, keepdim=True)
        scale = _round_up(((high - low) / 15).clamp(min=_SMALLEST))
        offset = (low + 8 * scale).bfloat16().float()
        codes = ((grouped - offset) / scale + 8).round().clamp(0, 15).to(torch.uint8)
        scales = torch.stack((scale[..., 0], offset[..., 0]), -1).transpose(0, 1)
        self.register_buffer("codes", _join_halves(codes.flatten(1)))
        self.register_buffer("scales", scales.bfloat16().contiguous())  # [G, O, 2]
        self.is_packed = False
        self.pack()

    @property
    def num_bytes(self) -> int:
        """Memory of the matrix and its scales."""
        return self.codes.nbytes + self.scales.nbytes

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The matrix that this one stands for: [O, I]."""
        codes = _layout().unpack(self.codes) if self.is_packed else _part_halves(self.codes)
        scale, offset = self.scales.float().transpose(0, 1)[..., None].unbind(2)  # [O, G, 1]
        matrix = (codes.unflatten(1, (-1, GROUP)).float() - 8) * scale + offset
        return matrix.flatten(1)[: self.out_features, : self.in_features].to(dtype)

    def multiply(self, rows: Tensor) -> Tensor:
        """W x + b: [M, I] -> [M, O]."""
        if not self.is_packed:
            return self.plain(rows)
        taken = F.pad(rows, (0, self.missing)) if self.missing else rows
        found = torch.ops.aten._weight_int4pack_mm_for_cpu(
            taken.bfloat16().contiguous(), self.codes, GROUP, self.scales.bfloat16()
        )
        found = found[:, : self.out_features].to(rows.dtype)
        return found if self.bias is None else found + self.bias.to(found.dtype)

    def pack(self) -> None:
        """Put the weights in the order of this device's kernels, if it has some."""
        if not self.is_packed and self.codes.device.type == "cpu" and _layout().rows:
            self.codes = _pack(_part_halves(self.codes))
            self.is_packed = True

    def unpack(self) -> None:
        """Put the weights in an order that means the same everywhere."""
        if self.is_packed:
            self.codes = _join_halves(_layout().unpack(self.codes))
            self.is_packed = False


def quantized_linear(weight: Tensor, bias: nn.Parameter | None, bits: Bits) -> InferenceLinear:
    """The layer y = W x + b with a matrix [O, I] of so many bits a weight."""
    return (Int8Linear if bits == 8 else Int4Linear)(weight, bias)


def _round_up(scale: Tensor) -> Tensor:
    """The next numbers that bfloat16 has: so scales mean the same in every precision."""
    return (scale * (1 + 2**-8)).bfloat16().float()


def _has_integer_products() -> bool:
    known = "fbgemm" in torch.backends.quantized.supported_engines
    return known and hasattr(torch.ops.quantized, "linear_prepack")


def _join_halves(codes: Tensor) -> Tensor:
    """Two codes a byte: [O, I] -> [O, I / 2]."""
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def _part_halves(pairs: Tensor) -> Tensor:
    """[..., I / 2] -> [..., I]."""
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)


def _pack(codes: Tensor) -> Tensor:
    """In the order of PyTorch's kernel: uint8 [O, I] -> [O, I / 2]."""
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)


class _Layout:
    """The order in which PyTorch's kernel for 4 bits keeps a matrix; it differs between CPUs.

    Blocks of rows stand one after another; in a block all rows of one input stand together, in an
    order that is found out by packing their numbers. `rows` is the size of a block; 0: unknown.
    """

    def __init__(self) -> None:
        self.rows, self.order = 0, torch.arange(0)
        numbers = torch.arange(_BLOCK, dtype=torch.uint8)[:, None].expand(-1, GROUP)
        tested = torch.arange(2 * _BLOCK * GROUP).view(-1, GROUP).mul(7).div(5).remainder(16)
        tested = tested.to(torch.uint8)
        for rows in (_BLOCK, _BLOCK // 2, _BLOCK // 4):
            low, high = (_pack(part)[: rows // 2] for part in (numbers & 15, numbers >> 4))
            places = [_part_halves(part.reshape(-1)[: rows // 2]) for part in (low, high)]
            self.rows, self.order = rows, torch.argsort(places[0].int() + 16 * places[1].int())
            if torch.equal(self.unpack(_pack(tested)), tested):
                return
        self.rows = 0

    def unpack(self, packed: Tensor) -> Tensor:
        """[O, I / 2] -> [O, I]."""
        outputs, inputs = packed.shape[0], 2 * packed.shape[1]
        blocks = _part_halves(packed.view(outputs // self.rows, inputs, self.rows // 2))
        return blocks[..., self.order].transpose(1, 2).reshape(outputs, inputs)


@functools.cache
def _layout() -> _Layout:
    return _Layout()
