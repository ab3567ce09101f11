"""Who may look at whom: one value a forward pass, turned into a tensor in one place.

Shape letters: B rows, T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trivium import spec
from trivium.nn.cache import Start, per_row, positions_of, since


@dataclass(frozen=True)
class Mask:
    """What limits attention in a stack.

    Args:
        causal: a query sees no later key.
        padding: bool [B, S], True where a key is real; None: all are.
        documents: int64 [B, S], packed membership: a query sees its own document only.
        prefix: int64 [B], of a causal stack: that many first keys are seen by every query.
        start: position of the first query among the keys (tokens already in a cache); where rows
            differ, one each.
        texts: lengths of the documents of a single row, if nothing else limits it and each had
            better attend by itself.
    """

    causal: bool
    padding: Tensor | None = None
    documents: Tensor | None = None
    prefix: Tensor | None = None
    start: Start = 0
    texts: tuple[int, ...] | None = None
    _known: dict[tuple[object, ...], Tensor | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def is_plain_causal(self, pattern: spec.Full | spec.Sliding, queries: int) -> bool:
        """Nothing but causality from the first token on, for which kernels need no tensor."""
        limits = (self.padding, self.documents, self.prefix)
        plain = all(limit is None for limit in limits) and isinstance(pattern, spec.Full)
        return plain and self.causal and self.start == 0 and queries > 1

    def positions(self, queries: int, device: torch.device) -> Tensor:
        """Where the queries stand: int64 [1, T], or [B, T] where rows differ."""
        if isinstance(self.start, int):
            return torch.arange(self.start, self.start + queries, device=device)[None]
        return positions_of(self.start, queries, device)

    def row(self, row: int) -> Mask:
        """That of one row."""

        def of(limit: Tensor | None) -> Tensor | None:
            return None if limit is None else limit[row : row + 1]

        start = self.start if isinstance(self.start, int) else self.start[row]
        return Mask(self.causal, of(self.padding), of(self.documents), of(self.prefix), start)

    def since(self, first: Start) -> Mask:
        """The same where keys before the first are forgotten."""
        if first == 0:
            return self
        if self.documents is not None or self.prefix is not None:
            raise ValueError("documents and prefixes are not looked at where keys are forgotten.")
        padding = self.padding
        if padding is not None:
            if not isinstance(first, int):
                raise ValueError("rows with padding begin together.")
            padding = padding[:, first:]
        return replace(self, padding=padding, start=since(self.start, first))

    def allowed(
        self, pattern: spec.Full | spec.Sliding, queries: int, keys: int, device: torch.device
    ) -> Tensor | None:
        """Bool [1 or B, 1, T or 1, S], True where attention is allowed; None: everywhere."""
        if self._sees_all(pattern, queries):
            return None
        return self._once(
            (pattern, queries, keys), lambda: self._allowed(pattern, queries, keys, device)
        )

    def added(
        self,
        pattern: spec.Full | spec.Sliding,
        queries: int,
        keys: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Tensor | None:
        """The same as what is added to scores: 0 where attention is allowed, else -inf."""
        allowed = self.allowed(pattern, queries, keys, device)
        if allowed is None:
            return None
        return self._once(
            (pattern, queries, keys, dtype),
            lambda: torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill(
                ~allowed, -torch.inf
            ),
        )

    def _once(self, asked: tuple[object, ...], make: Callable[[], Tensor | None]) -> Tensor | None:
        """What every layer asks for alike; a compiled block takes no tensors from another."""
        if torch.compiler.is_compiling():
            return make()
        if asked not in self._known:
            self._known[asked] = make()
        return self._known[asked]

    def _allowed(
        self, pattern: spec.Full | spec.Sliding, queries: int, keys: int, device: torch.device
    ) -> Tensor | None:
        query = self.positions(queries, device)[:, None, :, None]  # [1 or B, 1, T, 1]
        key = torch.arange(keys, device=device)
        allowed = None
        if self.causal and (queries > 1 or not isinstance(self.start, int)):
            allowed = key <= query
            if self.prefix is not None:
                allowed = allowed | (key < self.prefix[:, None, None, None])
        if isinstance(pattern, spec.Sliding):
            near = (query - key).abs() <= pattern.window
            allowed = near if allowed is None else allowed & near
        if self.documents is not None:
            first = max(per_row(self.start, 1))
            mine = self.documents[:, first : first + queries]
            same = mine[:, None, :, None] == self.documents[:, None, None, :]
            allowed = same if allowed is None else allowed & same
        if self.padding is not None:
            real = self.padding[:, None, None, :]
            # A padded query still sees itself: a row without any key has no softmax.
            allowed = real if allowed is None else (allowed & real) | (query == key)
        return allowed

    def _sees_all(self, pattern: spec.Full | spec.Sliding, queries: int) -> bool:
        """Nothing limits the last token of every row."""
        last = queries == 1 and isinstance(self.start, int)
        free = self.padding is None and self.documents is None and isinstance(pattern, spec.Full)
        return free and (last or not self.causal)
