"""Linear layers for inference: weights prepacked for oneDNN (CPU), and weights in int8.

oneDNN's matmul is fastest with weights in its own blocked layout. `nn.Linear` converts the weight
to this layout at every call. If weights are packed once instead, two cores decode GPT-2 about twice
as fast in float32.

Shape letters: I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The int8 kernel needs a multiple of 32 inputs. It is fast only in bfloat16 (10 to 50 times slower
# in float32) and only for up to 16 rows: for more, converting the weight first is faster.
_INT8_MULTIPLE, _INT8_MAX_ROWS = 32, 16
_MIN_SCALE = 1e-7  # the scale of a row of zeros; representable in float16


class PackedLinear(nn.Module):
    """y = x W^T + b with W in oneDNN's packed layout, only for inference on a CPU.

    Args:
        weight: [O, I], float32 or bfloat16; x must have the same dtype.
        bias: [O], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self.bias = bias

    @staticmethod
    def supports(weight: Tensor) -> bool:
        """Return whether this PyTorch build and CPU have a packed matmul for the weight's dtype."""
        if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
            return False
        if weight.dtype == torch.bfloat16:
            return torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return weight.dtype == torch.float32

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b: [..., I] -> [..., O]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Int8Linear(nn.Module):
    """y = x W^T + b with weights in int8 and one scale per output, only for inference.

    The weight is W[o, i] = scale[o] q[o, i] with integers |q| <= 127. If x has few rows, an int8
    kernel is used on a CPU, with x rounded to bfloat16. Otherwise the integers are converted to the
    dtype of x for each matmul, which saves memory but no time.

    Args:
        weight: [O, I], in any floating-point dtype.
        bias: [O], or None.
    """

    codes: Tensor
    scale: Tensor
    ones: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        exact = weight.detach().float()
        scale = (exact.abs().amax(1) / 127).clamp(min=_MIN_SCALE).to(weight.dtype)
        codes = (exact / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.register_buffer("ones", torch.ones_like(scale, dtype=torch.bfloat16))
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b: [..., I] -> [..., O]."""
        rows = x.reshape(-1, x.shape[-1])
        few = len(rows) <= _INT8_MAX_ROWS and rows.shape[1] % _INT8_MULTIPLE == 0
        if few and x.device.type == "cpu":
            kernel = torch.ops.aten._weight_int8pack_mm
            y = kernel(rows.to(torch.bfloat16), self.codes, self.ones).to(x.dtype) * self.scale
        else:
            y = F.linear(rows, self.codes.to(x.dtype)) * self.scale
        y = y.view(*x.shape[:-1], len(self.codes))
        return y if self.bias is None else y + self.bias
