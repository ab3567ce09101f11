"""The position-wise feed-forward network.

Shape letters: D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from torch import Tensor, nn
from torch.nn import functional as F

from trivium.nn.activations import Activation, Swish, build_activation
from trivium.nn.feed_forwards import FeedForward, FeedForwardModule
from trivium.nn.part import Count, DropoutRate
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State


class MLP(FeedForward):
    """act(x W_up) W_down, or with a gate (act(x W_gate) * (x W_up)) W_down (Shazeer 2020).

    `dropout` is that of its hidden units, which most models do not have; where it is not 0, it
    changes with the model's.
    """

    kind: Literal["mlp"] = "mlp"
    d_ff: Count
    activation: Activation | Swish
    gated: bool = False
    bias: bool = True
    dropout: DropoutRate = 0.0

    @property
    def tp_sizes(self) -> dict[str, int]:
        """See `FeedForward.tp_sizes`."""
        return {"d_ff": self.d_ff}

    def activation_numel(self, width: int) -> int:
        """Hidden units before and after the activation, and the gate's.

        Of these relu needs one; a Swish with its own beta also keeps its sigmoid. Dropout keeps
        what it drops, and what is left.
        """
        needed = 1 if self.activation == "relu" else 3 if isinstance(self.activation, Swish) else 2
        return self.d_ff * (needed + (2 if self.gated else 0) + (2 if self.dropout else 0))

    def with_dropout(self, dropout: float) -> Self:
        """See `FeedForward.with_dropout`."""
        return self.replace(dropout=dropout) if self.dropout else self

    def narrower(self, fraction: float) -> Self:
        """See `FeedForward.narrower`."""
        return self.replace(d_ff=max(1, round(self.d_ff * fraction)))

    def build(self, d_model: int) -> MLPModule:
        """See `FeedForward.build`."""
        return MLPModule(self, d_model)


class MLPModule(FeedForwardModule):
    """act(x W_up) W_down (Vaswani et al. 2017, equation 2).

    Gated it is (act(x W_gate) * (x W_up)) W_down; with silu that is SwiGLU (Shazeer 2020).
    """

    parallel: ClassVar[Mapping[str, str]] = {"up": "column", "gate": "column", "down": "row"}

    def __init__(self, part: MLP, width: int) -> None:
        super().__init__(part, width)
        self.activation = build_activation(part.activation)
        self.up = nn.Linear(width, part.d_ff, bias=part.bias)
        self.down = nn.Linear(part.d_ff, width, bias=part.bias)
        self.gate = nn.Linear(width, part.d_ff, bias=part.bias) if part.gated else None

    def forward(
        self, x: Tensor, sequence: SequenceInfo | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[..., D] -> [..., D], and no loss."""
        if self.gate is None:
            hidden = self.activation(self.up(x))
        else:
            hidden = self.activation(self.gate(x)) * self.up(x)
        return self.down(F.dropout(hidden, self.part.dropout, self.training)), None
