"""Linear layers for inference on a CPU: oneDNN's prepacked order, and 8-bit weights.

oneDNN reads a matrix fastest in blocks of its own. `nn.Linear` reorders it at every call; packed
once, two cores decode GPT-2 about twice as fast in float32.

Shape letters: I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The int8 kernel reads inputs in whole vectors, is fast in bfloat16 alone (in float32 10 to 50
# times slower), and for few rows: for more a product of converted integers is faster.
_INT8_MULTIPLE, _INT8_ROWS = 32, 16
_SMALLEST_SCALE = 1e-7  # of a row of zeros; float16 can hold it


class PackedLinear(nn.Module):
    """y = x W^T + b with W in oneDNN's order. Inference on a CPU alone.

    Args:
        weight: [O, I], float32 or bfloat16; x has the same precision.
        bias: [O].
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self.bias = bias

    @staticmethod
    def supports(weight: Tensor) -> bool:
        """Whether this PyTorch and this CPU have a packed product for a matrix."""
        if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
            return False
        if weight.dtype == torch.bfloat16:
            return torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return weight.dtype == torch.float32

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Int8Linear(nn.Module):
    """y = x W^T + b with W[o, i] = scale[o] q[o, i] and integers |q| <= 127. Inference alone.

    A CPU has a kernel that reads the integers, for few rows of x, which it rounds to bfloat16;
    elsewhere they are converted for each product, which saves memory but no time.

    Args:
        weight: [O, I], of any precision.
        bias: [O].
    """

    codes: Tensor
    scale: Tensor
    ones: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        exact = weight.detach().float()
        scale = (exact.abs().amax(1) / 127).clamp(min=_SMALLEST_SCALE).to(weight.dtype)
        codes = (exact / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.register_buffer("ones", torch.ones_like(scale, dtype=torch.bfloat16))
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rows = x.reshape(-1, x.shape[-1])
        few = len(rows) <= _INT8_ROWS and rows.shape[1] % _INT8_MULTIPLE == 0
        if few and x.device.type == "cpu":
            kernel = torch.ops.aten._weight_int8pack_mm
            y = kernel(rows.to(torch.bfloat16), self.codes, self.ones).to(x.dtype) * self.scale
        else:
            y = F.linear(rows, self.codes.to(x.dtype)) * self.scale
        y = y.view(*x.shape[:-1], len(self.codes))
        return y if self.bias is None else y + self.bias
