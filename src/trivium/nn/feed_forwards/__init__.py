"""Kinds of feed-forward networks: the sublayer of a block that transforms each hidden state.

Shape letters: D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from trivium.choice import Choice, import_submodules
from trivium.nn.part import Part, PartModule
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State


class FeedForward(Choice, Part):
    """Spec of a feed-forward network, which is applied to each token: [..., D] -> [..., D]."""

    has_aux_loss: ClassVar[bool] = False
    """Whether the network has an auxiliary loss, such as the load-balancing loss of MoE."""
    reads_earlier_tokens: ClassVar[bool] = False
    """Whether the network also reads earlier tokens (RWKV) and therefore needs a state. It then
    computes all tokens, even if only some are gathered (`SequenceInfo.gather_positions`)."""
    has_fixed_shapes: ClassVar[bool] = True
    """Whether no tensor shape depends on the tokens, so that a decode step can be compiled."""

    @property
    def sharded_fields(self) -> dict[str, int]:
        """Fields (name: size) that tensor parallelism must divide; empty: it is not supported."""
        return {}

    def activation_numel(self, width: int) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        The input of the network (`width` elements) and its norm are not included, because the
        block counts them.
        """
        raise NotImplementedError

    def with_dropout(self, dropout: float) -> Self:
        """Return the spec with another dropout rate, or unchanged if it has no dropout."""
        return self

    def scale_width(self, fraction: float) -> FeedForward:
        """Return the spec with the number of hidden units multiplied by `fraction`."""
        raise NotImplementedError

    def build(self, d_model: int) -> FeedForwardModule:
        """Return the module, which maps [..., d_model] to [..., d_model]."""
        raise NotImplementedError


class FeedForwardModule(PartModule):
    """Base class of the modules of feed-forward networks.

    Args:
        part: the spec of the network.
        width: the width of the hidden states, D.
    """

    def __init__(self, part: Any, width: int) -> None:
        super().__init__()
        self.part = part

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty state for decoding with a cache; needed if earlier tokens are read.

        See `MixerModule.new_state`.
        """
        raise NotImplementedError

    def forward(
        self, x: Tensor, sequence: SequenceInfo | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output [..., D], and a tensor for the auxiliary loss or None.

        The stack sums the tensors for the auxiliary loss over all layers and passes the sum to
        `loss`.

        Args:
            x: the hidden states [..., D]; only those at `sequence.gather_positions` if it is set.
                Networks that read earlier tokens get [B, T, D].
            sequence: the metadata of the forward pass.
            state: the state of the earlier tokens, which is updated in place.
        """
        raise NotImplementedError

    def loss(self, layer_sum: Tensor) -> Tensor:
        """Return the auxiliary loss, a mean per token.

        `layer_sum` is the second output of `forward`, summed over all layers.
        """
        return layer_sum

    @property
    def inactive_experts(self) -> Iterable[nn.Module]:
        """Experts whose parameters are not counted as active parameters per token.

        There are as many as each token leaves unused. Empty if the network has no experts.
        """
        return ()


import_submodules(__name__, __path__)
