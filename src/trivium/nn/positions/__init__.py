"""The module of every kind of positions, described in `spec/positions`.

Shape letters: B batch, T query positions, S key positions, D width, N heads, K key-value heads,
H head_dim.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trivium import spec
from trivium.choice import import_members
from trivium.nn.context import Context
from trivium.nn.mask import Bias
from trivium.nn.part_module import PartModule


class PositionsModule(PartModule):
    """What attention asks of its positions; this one, for attention without any, answers nothing.

    Args:
        attention: whose positions they are.
        width: D.
    """

    def __init__(self, attention: spec.Attention, width: int) -> None:
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
