"""The position-wise feed-forward network (MLP), plain or gated.

Shape letters: D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.activations import Activation, Swish, build_activation
from trivium.nn.feed_forwards import FeedForward, FeedForwardModule
from trivium.nn.fused_linear import FusedLinear
from trivium.nn.part import Count, DropoutRate, Positive
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State


class MLP(FeedForward):
    """Spec of an MLP: act(x W_up) W_down, or gated (act(x W_gate) * (x W_up)) W_down.

    Gated networks are those of Shazeer 2020, such as SwiGLU.

    Args:
        d_ff: the number of hidden units.
        activation: the activation function, act.
        gated: whether the network has a gate, W_gate.
        bias: whether the linear layers have biases.
        clamp: c, with which the gate's input to the activation is limited to at most c, and x W_up
            to [-c, c] (gpt-oss). Only for gated networks.
        up_offset: a number that is added to x W_up (1 in gpt-oss). Only for gated networks.
        dropout: the dropout rate of the hidden units, which is 0 in most models. If it is not 0,
            changing the dropout of the model also changes this rate.
    """

    kind: Literal["mlp"] = "mlp"
    d_ff: Count
    activation: Activation | Swish
    gated: bool = False
    bias: bool = True
    clamp: Positive | None = None
    up_offset: Literal[0, 1] = 0
    dropout: DropoutRate = 0.0

    def check(self) -> None:
        """Raise SpecError if `clamp` or `up_offset` is set without a gate."""
        if not self.gated and (self.clamp is not None or self.up_offset):
            raise SpecError("clamp and up_offset are for gated networks: set gated, or leave them.")

    @property
    def sharded_fields(self) -> dict[str, int]:
        """Tensor parallelism must divide `d_ff`. See `FeedForward.sharded_fields`."""
        return {"d_ff": self.d_ff}

    def activation_numel(self, width: int) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        Each hidden unit counts before and after the activation: relu keeps only one of the two,
        and a `Swish` also keeps its sigmoid. A gate adds two elements per hidden unit, and clamping
        two more, the inputs of both clamps. Dropout adds two, its mask and its output.
        """
        needed = 1 if self.activation == "relu" else 3 if isinstance(self.activation, Swish) else 2
        clamped = 2 if self.clamp is not None else 0
        return self.d_ff * (needed + (2 if self.gated else 0) + clamped + 2 * bool(self.dropout))

    def with_dropout(self, dropout: float) -> Self:
        """Return the spec with another dropout rate, or unchanged if the rate is 0."""
        return self.replace(dropout=dropout) if self.dropout else self

    def scale_width(self, fraction: float) -> Self:
        """Return the spec with `d_ff` multiplied by `fraction`. See `FeedForward.scale_width`."""
        return self.replace(d_ff=max(1, round(self.d_ff * fraction)))

    def build(self, d_model: int) -> MLPModule:
        """Return the module `MLPModule`. See `FeedForward.build`."""
        return MLPModule(self, d_model)


class MLPModule(FeedForwardModule):
    """Module of an MLP: act(x W_up) W_down (Vaswani et al. 2017, equation 2).

    With a gate it computes (act(x W_gate) * (x W_up)) W_down, which is SwiGLU if the activation is
    silu (Shazeer 2020).
    """

    parallel: ClassVar[Mapping[str, str]] = {"up": "column", "gate": "column", "down": "row"}

    def __init__(self, part: MLP, width: int) -> None:
        super().__init__(part, width)
        self.activation = build_activation(part.activation)
        self.up = nn.Linear(width, part.d_ff, bias=part.bias)
        self.down = nn.Linear(part.d_ff, width, bias=part.bias)
        self.gate = nn.Linear(width, part.d_ff, bias=part.bias) if part.gated else None
        self.gate_up: FusedLinear | None = None  # gate and up, fused for decoding

    def forward(
        self, x: Tensor, sequence: SequenceInfo | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output [..., D], and None because there is no auxiliary loss."""
        if self.gate is None:
            hidden = self.activation(self.up(x))
        else:
            gate, up = self.gate_up(x) if self.gate_up is not None else (self.gate(x), self.up(x))
            if (limit := self.part.clamp) is not None:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            hidden = self.activation(gate) * (up + 1 if self.part.up_offset else up)
        return self.down(F.dropout(hidden, self.part.dropout, self.training)), None

    def fuse_projections(self) -> None:
        """Compute gate and up in one matmul from now on. Only for inference."""
        self.gate_up = FusedLinear.fuse(self.gate, self.up)
