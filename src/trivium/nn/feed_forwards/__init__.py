"""Kinds of feed-forward networks: the sublayer of a block that transforms each token separately.

Shape letters: D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from trivium.choice import Choice, import_members
from trivium.nn.part import Part, PartModule
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State


class FeedForward(Choice, Part):
    """Spec of a feed-forward network, which is applied to each token: [..., D] -> [..., D]."""

    has_aux_loss: ClassVar[bool] = False
    """Whether the network has an auxiliary loss, as experts have for load balancing."""
    reads_earlier_tokens: ClassVar[bool] = False
    """Whether the network also reads earlier tokens, for which its module needs a state. It then
    computes all tokens, even if only some are gathered (`SequenceInfo.gather_positions`)."""
    has_fixed_shapes: ClassVar[bool] = True
    """Whether no shape depends on the tokens, so that `torch.compile` can take a whole step."""

    @property
    def tp_sizes(self) -> dict[str, int]:
        """The field names and sizes that tensor parallelism divides; empty: not divisible."""
        return {}

    def activation_numel(self, width: int) -> int:
        """Return the activation numel: the numbers per token that training keeps for backward.

        The block counts the input of the network (`width` numbers) and its norm.
        """
        raise NotImplementedError

    def with_dropout(self, dropout: float) -> Self:
        """Return the spec with this dropout rate of hidden units, if it has such dropout."""
        return self

    def scale_width(self, fraction: float) -> FeedForward:
        """Return the spec with `fraction` times as many hidden units."""
        raise NotImplementedError

    def build(self, d_model: int) -> FeedForwardModule:
        """Return the module, which maps [..., d_model] to [..., d_model]."""
        raise NotImplementedError


class FeedForwardModule(PartModule):
    """Module of a feed-forward network.

    Args:
        part: the spec of the network.
        width: the width of the hidden states, D.
    """

    def __init__(self, part: Any, width: int) -> None:
        super().__init__()
        self.part = part

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """See `MixerModule.new_state`; only for networks that read earlier tokens."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, sequence: SequenceInfo | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output [..., D] -> [..., D] and a tensor for the auxiliary loss, or None.

        The stack adds up these tensors over all layers and passes the sum to `loss`.

        Args:
            x: the hidden states [..., D]; only those at `sequence.gather_positions` if it is set.
                Networks that read earlier tokens get [B, T, D].
            sequence: the metadata of the forward pass.
            state: the state of the earlier tokens, which is updated in place.
        """
        raise NotImplementedError

    def loss(self, layer_sum: Tensor) -> Tensor:
        """Return the auxiliary loss (a mean per token) from the summed tensors of the layers."""
        return layer_sum

    @property
    def inactive_experts(self) -> Iterable[nn.Module]:
        """As many experts as each token leaves unused, to count the active parameters per token."""
        return ()


import_members(__name__, __path__)
