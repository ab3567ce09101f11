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
        """Keys and values of what an encoder read, projected once.

        Texts side by side that read the same have one row together.
        """
        if self.memory is None:
            self.memory = project()
        return self.memory

    def reorder(self, rows: Tensor, length: int, memory_rows: Tensor | None) -> None:
        """Keep the given rows and the first `length` positions of them; None: all of the memory."""
        self.keys, self.values = _moved(self.keys, rows, length), _moved(self.values, rows, length)
        if self.memory is not None and memory_rows is not None:
            keys, values = self.memory
            self.memory = keys[memory_rows], values[memory_rows]


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
        self.batch, self.max_length = batch, max_length
        self.length = 0
        self.layers = [
            LayerCache(*torch.zeros(2, *shape, dtype=dtype, device=device).unbind(0))
            for shape in (
                (batch, attention.kv_heads, max_length, attention.head_dim)
                for attention in stack.attentions
            )
        ]

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: int64 [B], fewer, as many or more than before.

        Where every so many rows in a row come from one text, as in beam search, they share what
        its encoder read.
        """
        if torch.equal(rows, torch.arange(self.batch, device=rows.device)):
            return
        memory_rows = self._memory_rows(rows)
        self.batch = len(rows)
        for layer in self.layers:
            layer.reorder(rows, self.length, memory_rows)

    def _memory_rows(self, rows: Tensor) -> Tensor | None:
        """Which rows of the memory stay; None: all, as they are."""
        memory = self.layers[0].memory
        if memory is None:
            return None
        texts = len(memory[0])
        wanted = rows // (self.batch // texts)
        kept, counts = wanted.unique_consecutive(return_counts=True)
        if bool((counts != counts[0]).any()):
            return wanted
        return None if torch.equal(kept, torch.arange(texts, device=rows.device)) else kept


def _moved(part: Tensor, rows: Tensor, length: int) -> Tensor:
    """The rows of [B, K, S, H], in the same memory where there is room, filled up to `length`."""
    filled = part[:, :, :length].index_select(0, rows)
    room = part[: len(rows)]
    if len(rows) > len(part):
        room = part.new_zeros(len(rows), *part.shape[1:])
    room[:, :, :length] = filled
    return room
