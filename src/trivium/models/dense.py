"""The layer before a head's projection.

Shape letters: D d_model.
"""

from __future__ import annotations

from torch import Tensor, nn

from trivium import spec
from trivium.nn.activations import build_activation
from trivium.nn.norm import build_norm


class DenseLayer(nn.Module):
    """act(h W + b), then a norm where the spec has one."""

    def __init__(self, dense: spec.Dense, inputs: spec.HeadInput, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs.d_model, outputs, bias=dense.bias)
        self.activation = build_activation(dense.activation)
        self.norm = build_norm(inputs.norm if dense.norm else None, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., outputs]."""
        return self.norm(self.activation(self.linear(hidden)))


def build_dense(dense: spec.Dense | None, inputs: spec.HeadInput, outputs: int) -> nn.Module:
    """The layer of a head; without one the identity, or a matrix to vectors of another width."""
    if dense is not None:
        return DenseLayer(dense, inputs, outputs)
    same = inputs.d_model == outputs
    return nn.Identity() if same else nn.Linear(inputs.d_model, outputs, bias=False)
