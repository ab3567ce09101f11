"""Keys and values of the tokens already seen, so that a new token costs one position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivium import spec


class LayerCache:
    """Room for the keys and values of one layer: two tensors [B, K, S, H], filled from the left."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.memory: tuple[Tensor, Tensor] | None = None

    def extend(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [B, K, T, H] at position `start` and return all that is known by now."""
        stop = start + keys.shape[2]
        self.keys[:, :, start:stop] = keys
        self.values[:, :, start:stop] = values
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def recall(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of what an encoder read: projected once, at the first token."""
        if self.memory is None:
            self.memory = project()
        return self.memory


class Cache:
    """The caches of a stack and how many positions they hold; the model advances it once.

    Args:
        stack: the stack whose layers are cached.
        batch: rows.
        max_length: positions to make room for, in tokens.
    """

    def __init__(
        self,
        stack: spec.Stack,
        batch: int,
        max_length: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.max_length = max_length
        self.length = 0
        self.layers = [
            LayerCache(*torch.zeros(2, *shape, dtype=dtype, device=device).unbind(0))
            for shape in (
                (batch, attention.kv_heads, max_length, attention.head_dim)
                for attention in stack.attentions
            )
        ]

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: int64 [B]."""
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
            if layer.memory is not None:
                keys, values = layer.memory
                layer.memory = keys[rows], values[rows]
