"""Linear layers with the same input, computed in one matmul for inference.

Shape letters: I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FusedLinear(nn.Module):
    """Several linear layers with the same input, computed in one matmul. Only for inference.

    The weights of the layers become views of one matrix [sum of O, I]: they keep their names and
    values, and take no further memory.

    Args:
        layers: the layers, with weights [O, I] of one dtype on one device.
    """

    def __init__(self, *layers: nn.Linear) -> None:
        super().__init__()
        self.sizes = [layer.out_features for layer in layers]
        self.weight = torch.cat([layer.weight.detach() for layer in layers])
        for layer, part in zip(layers, self.weight.split(self.sizes), strict=True):
            layer.weight.data = part
        self.bias: Tensor | None = None
        if any(layer.bias is not None for layer in layers):
            biases = [layer.bias for layer in layers]
            self.bias = torch.cat(
                [
                    self.weight.new_zeros(size) if bias is None else bias.detach()
                    for bias, size in zip(biases, self.sizes, strict=True)
                ]
            )
            for bias, part in zip(biases, self.bias.split(self.sizes), strict=True):
                if bias is not None:
                    bias.data = part

    @staticmethod
    def fuse(*layers: nn.Module | None) -> FusedLinear | None:
        """Return the fused layer, or None if one of the layers is not a plain `nn.Linear`."""
        plain = [layer for layer in layers if type(layer) is nn.Linear]
        return FusedLinear(*plain) if len(plain) == len(layers) else None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the layers: [..., I] -> [..., O] for each."""
        return F.linear(x, self.weight, self.bias).split(self.sizes, -1)
