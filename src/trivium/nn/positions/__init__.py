"""Kinds of positions: how a model knows where tokens are.

Shape letters: B batch, T query positions, S key positions, D width, N heads, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from trivium.choice import Choice, import_members
from trivium.nn.context import Context
from trivium.nn.mask import Bias
from trivium.nn.part import Part, PartModule


class AbsolutePositions(Choice, Part):
    """A vector of each position, added to that of the token."""

    fills_blanks: ClassVar[bool] = False
    """Whether they tell a decoder which blank of a text its tokens fill."""
    max_length: Any
    """Where they end, in tokens; None: nowhere."""

    def build(self, width: int) -> PartModule:
        """Return the module, which maps positions, int64 [B, T], to vectors [B, T, width]."""
        raise NotImplementedError


class Positions(Choice, Part):
    """How attention knows where queries and keys are."""

    has_scores: ClassVar[bool] = False
    """Whether something is added to the scores of attention."""
    divides: ClassVar[bool] = False
    """Whether tensor parallelism can divide them by heads."""

    num_token_types: ClassVar[int] = 0
    """Types of tokens (sentence A and B) that they compare."""

    @property
    def products(self) -> int:
        """How many products of vectors a score is the sum of, with that of query and key."""
        return 1

    def refuses(self, head_dim: int) -> str:
        """Why heads of this width cannot have them; empty where they can."""
        return ""

    def flops(self, attended: float, num_heads: int, head_dim: int) -> float:
        """What they add to `Mixer.flops` of their attention."""
        return 0.0

    def kept_numbers(self, length: int, num_heads: int, head_dim: int) -> int:
        """What they add to `Mixer.kept_numbers` of their attention."""
        return 0

    def build(self, attention: Any, d_model: int) -> PositionsModule:
        """Return the module of these positions in `attention`, an `Attention` of width d_model."""
        raise NotImplementedError


class PositionsModule(PartModule):
    """What attention asks of its positions; this one, for attention without any, answers nothing.

    Args:
        attention: whose positions they are.
        width: D.
    """

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__()
        self.attention = attention
        self.heads = slice(None)  # those of this process, where tensor parallelism divides them

    def new_table(self) -> nn.Module | None:
        """See `MixerModule.new_table`."""
        return None

    def prepare(self, context: Context, keys: Context, table: nn.Module | None) -> Any:
        """See `MixerModule.prepare`."""
        return None

    def turn(self, x: Tensor, prepared: Any) -> Tensor:
        """Queries, or keys before they are kept: [B, N, T, H] -> [B, N, T, H]."""
        return x

    def bias(self, prepared: Any) -> Bias | None:
        """Return the function that computes the bias of the scores, the same in all layers."""
        return None

    def prepare_layer(self, prepared: Any, query: nn.Linear, key: nn.Linear) -> Any:
        """What `scores` gets: `prepared`, and what the layer's matrices make of it."""
        return prepared

    def scores(self, query: Tensor, key: Tensor, prepared: Any) -> Tensor | None:
        """Added to the scores of this layer, [1 or B, N, T, S].

        Shape: query [B, N, T, H], key [B, K, S, H], both turned.
        """
        return None


def distances(context: Context, keys: Context) -> Tensor:
    """Column of the key - column of the query: int64 [1 or B, T, S].

    Columns, since padding before a text, or documents before it, do not change a distance.
    """
    return keys.columns[:, None, :] - context.columns[..., None]


import_members(__name__, __path__)
