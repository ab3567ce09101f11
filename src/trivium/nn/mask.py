"""Which keys a query attends to: one value per forward pass, made a tensor in one place.

Shape letters: B batch, N heads, T query positions, S key positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import assert_never

import torch
from torch import Tensor

from trivium import spec
from trivium.errors import SpecError


@dataclass(frozen=True)
class Mask:
    """What limits attention in a stack: every limit that is set holds.

    The output of a query that may attend to nothing is 0. Self-attention may have any of them. In
    cross-attention, whose queries and keys are of two texts, only `padding` and `custom` have a
    meaning.

    Args:
        causal: a query attends to no later key.
        padding: [B, S], nonzero where a key is real.
        documents: int64 [B, S], packed membership: a query attends to its own document only.
        prefix: int64 [B], in a causal stack: every query attends to that many first keys.
        custom: bool, True where attention is allowed: [T, S], or [B, N, T, S] with 1 for an axis
            along which it is the same.
        start: position of the first query among the keys (tokens already in a cache): one number,
            or int64 [B].
    """

    causal: bool = False
    padding: Tensor | None = None
    documents: Tensor | None = None
    prefix: Tensor | None = None
    custom: Tensor | None = None
    start: int | Tensor = 0
    _tensors: dict[tuple[object, ...], Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        custom = self.custom
        if custom is None:
            return
        if custom.dtype != torch.bool or custom.ndim not in (2, 4):
            raise SpecError(
                f"custom is a mask of {custom.dtype} with shape {list(custom.shape)}: give a bool "
                "tensor [T, S] or [B or 1, N or 1, T, S], True where attention is allowed."
            )
        if custom.ndim == 2:
            object.__setattr__(self, "custom", custom[None, None])

    def query_positions(self, queries: int, device: torch.device) -> Tensor:
        """Positions of the queries among the keys: int64 [1 or B, T]."""
        start = self.start if isinstance(self.start, int) else self.start[:, None]
        return start + torch.arange(queries, device=device)[None]

    def of_queries(self, start: int, stop: int) -> Mask:
        """The mask of the queries from `start` up to `stop` alone."""
        custom = self.custom
        if custom is not None and custom.shape[2] > 1:
            custom = custom[:, :, start:stop]
        return replace(self, start=self.start + start, custom=custom)

    def is_plain_causal(self, pattern: spec.Pattern, queries: int) -> bool:
        """Whether causality from the first token is the only limit, which kernels know."""
        from_first = isinstance(self.start, int) and self.start == 0 and queries > 1
        return self.causal and from_first and not self._has_other_limits(pattern)

    def allowed(
        self, pattern: spec.Pattern, queries: int, keys: int, device: torch.device
    ) -> Tensor | None:
        """Bool [1 or B, 1 or N, 1 or T, S], True where attention is allowed; None: everywhere."""
        last_of_all = queries == 1 and isinstance(self.start, int)
        if not self._has_other_limits(pattern) and (last_of_all or not self.causal):
            return None
        if torch.compiler.is_compiling():  # a compiled block takes no tensors from another
            return self._tensor(pattern, queries, keys, device)
        key = (pattern, queries, keys)
        if key not in self._tensors:  # layers with the same pattern share it
            self._tensors[key] = self._tensor(pattern, queries, keys, device)
        return self._tensors[key]

    def _has_other_limits(self, pattern: spec.Pattern) -> bool:
        """Whether more than causality limits attention."""
        limits = (self.padding, self.documents, self.custom, self.prefix if self.causal else None)
        return not isinstance(pattern, spec.Full) or any(limit is not None for limit in limits)

    def _tensor(
        self, pattern: spec.Pattern, queries: int, keys: int, device: torch.device
    ) -> Tensor:
        query = self.query_positions(queries, device)[:, None, :, None]  # [1 or B, 1, T, 1]
        key = torch.arange(keys, device=device)
        limits = []
        if self.causal:
            causal = key <= query
            if self.prefix is not None:
                causal = causal | (key < self.prefix[:, None, None, None])
            limits.append(causal)
        if isinstance(pattern, spec.Sliding):
            limits.append((query - key).abs() <= pattern.window)
        elif not isinstance(pattern, spec.Full):
            assert_never(pattern)
        if self.documents is not None:
            # Packed rows are read at once: no token of them is in a cache before.
            assert isinstance(self.start, int)
            own = self.documents[:, self.start : self.start + queries]
            limits.append(own[:, None, :, None] == self.documents[:, None, None, :])
        if self.custom is not None:
            limits.append(self.custom)
        if self.padding is not None:
            limits.append(self.padding[:, None, None, :].bool())
        return reduce(torch.logical_and, limits)
