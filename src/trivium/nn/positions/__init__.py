"""Kinds of position encodings.

Shape letters: B batch, T query positions, S key positions, D width, N heads, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from trivium.choice import Choice, import_members
from trivium.nn.mask import Bias
from trivium.nn.part import Part, PartModule
from trivium.nn.sequence_info import SequenceInfo


class AbsolutePositions(Choice, Part):
    """Absolute position encoding: a vector per position, added to the token embedding."""

    fills_blanks: ClassVar[bool] = False
    """Whether position ids tell which blank of a text each generated token fills (GLM)."""
    max_length: Any
    """The number of positions; None: unlimited."""

    def build(self, width: int) -> PartModule:
        """Return the module, which maps positions, int64 [B, T], to vectors [B, T, width]."""
        raise NotImplementedError


class Positions(Choice, Part):
    """Position encoding inside attention, for queries and keys."""

    has_scores: ClassVar[bool] = False
    """Whether the position encoding adds a term to the attention scores."""
    supports_tp: ClassVar[bool] = False
    """Whether tensor parallelism can divide the position encoding by heads."""

    num_token_types: ClassVar[int] = 0
    """The number of token types (such as sentence A and B) that attention compares; 0: none."""

    @property
    def num_dot_products(self) -> int:
        """The number of dot products that add up to one score, including query times key."""
        return 1

    def unsupported_reason(self, head_dim: int) -> str:
        """Return why heads of width `head_dim` cannot use these positions; "" if they can."""
        return ""

    def flops(self, attended: float, num_heads: int, head_dim: int) -> float:
        """Return the FLOPs per token that the positions add to the attention's `Mixer.flops`."""
        return 0.0

    def activation_numel(self, length: int, num_heads: int, head_dim: int) -> int:
        """Return the numel per token that the positions add to `Mixer.activation_numel`."""
        return 0

    def build(self, attention: Any, d_model: int) -> PositionsModule:
        """Return the module for `attention`, an `Attention` spec in a model of width d_model."""
        raise NotImplementedError


class PositionsModule(PartModule):
    """Position encoding inside attention; the base class itself encodes no positions.

    Args:
        attention: the `Attention` spec that the positions belong to.
        width: D.
    """

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__()
        self.attention = attention
        self.heads = slice(None)  # the heads of this process under tensor parallelism

    def new_table(self) -> nn.Module | None:
        """See `MixerModule.new_table`."""
        return None

    def prepare(self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None) -> Any:
        """See `MixerModule.prepare`."""
        return None

    def apply_rotary(self, x: Tensor, prepared: Any) -> Tensor:
        """Apply RoPE to queries, or to keys before caching: [B, N, T, H] -> [B, N, T, H]."""
        return x

    def bias(self, prepared: Any) -> Bias | None:
        """Return the function that computes the score bias, which all layers share, or None."""
        return None

    def prepare_layer(self, prepared: Any, query: nn.Linear, key: nn.Linear) -> Any:
        """Apply this layer's projections to `prepared`. Returns the last argument of `scores`."""
        return prepared

    def scores(self, query: Tensor, key: Tensor, prepared: Any) -> Tensor | None:
        """Return the term added to the scores of this layer, [1 or B, N, T, S], or None.

        Shape: query [B, N, T, H], key [B, K, S, H], both after `apply_rotary`.
        """
        return None


def distances(sequence: SequenceInfo, keys: SequenceInfo) -> Tensor:
    """Return the column of each key minus the column of each query: int64 [1 or B, T, S].

    A difference of columns does not depend on padding or documents before the text.
    """
    return keys.columns[:, None, :] - sequence.columns[..., None]


import_members(__name__, __path__)
