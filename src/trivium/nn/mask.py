"""Who may look at whom: one value a forward pass, turned into a tensor in one place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivium import spec


@dataclass(frozen=True)
class Mask:
    """What limits attention in a stack.

    Args:
        causal: a query sees no later key.
        padding: bool [B, S], True where a key is real; None: all are.
        documents: int64 [B, S], packed membership: a query sees its own document only.
        prefix: int64 [B], of a causal stack: that many first keys are seen by every query.
        start: position of the first query among the keys (tokens already in a cache).
    """

    causal: bool
    padding: Tensor | None = None
    documents: Tensor | None = None
    prefix: Tensor | None = None
    start: int = 0

    def is_plain_causal(self, pattern: spec.Full | spec.Sliding, queries: int) -> bool:
        """Nothing but causality from the first token on, for which kernels need no tensor."""
        limits = (self.padding, self.documents, self.prefix)
        plain = all(limit is None for limit in limits) and isinstance(pattern, spec.Full)
        return plain and self.causal and self.start == 0 and queries > 1

    def allowed(
        self, pattern: spec.Full | spec.Sliding, queries: int, keys: int, device: torch.device
    ) -> Tensor | None:
        """Bool [1 or B, 1, T, S], True where attention is allowed; None: everywhere."""
        query = torch.arange(self.start, self.start + queries, device=device)[:, None]
        key = torch.arange(keys, device=device)[None, :]
        allowed = None
        if self.causal and queries > 1:
            allowed = (key <= query)[None, None]
            if self.prefix is not None:
                allowed = allowed | (key < self.prefix[:, None, None, None])
        if isinstance(pattern, spec.Sliding):
            near = ((query - key).abs() <= pattern.window)[None, None]
            allowed = near if allowed is None else allowed & near
        if self.documents is not None:
            mine = self.documents[:, self.start : self.start + queries]
            same = mine[:, None, :, None] == self.documents[:, None, None, :]
            allowed = same if allowed is None else allowed & same
        if self.padding is not None:
            real = self.padding[:, None, None, :]
            # A padded query still sees itself: a row without any key has no softmax.
            allowed = real if allowed is None else (allowed & real) | (query == key)
        return allowed
