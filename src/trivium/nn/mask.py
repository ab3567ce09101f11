"""Which keys a query attends to: decided in one place, once a pass and kind of layer.

Shape letters: B batch, N heads, T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from trivium.nn.patterns import Pattern
from trivium.nn.sequence_info import SequenceInfo

Bias = Callable[[SequenceInfo, SequenceInfo], Tensor]
"""What some queries and keys have added to their scores: [1 or B, N, T, S]."""

# Entries [T, S] of a mask, or [N, T, S] of a bias or of scores, that are made at a time where
# nothing is kept for backward.
_MAX_MASK = 2**22
# Queries that see near keys alone are read in blocks of at least so many.
_MIN_BLOCK = 128
# Limits that leave a token at least itself to attend to.
_ALLOW_SELF = {"causal", "prefix", "documents"}


def allowed(
    queries: SequenceInfo,
    keys: SequenceInfo,
    pattern: Pattern | None = None,
    always: Tensor | None = None,
) -> Tensor | None:
    """Bool [1 or B, 1 or N, 1 or T, S], True where a query may attend to a key; None: everywhere.

    This is where it is decided whether a token sees another one: only if all limits allow it.
    `mask_conditions` names those that are set. The pattern hides no keys of `always`, bool [B, S].
    """

    def of(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query[:, None, :, None], key[:, None, None, :]

    limits = []
    if queries.causal:
        query, key = of(queries.columns, keys.columns)
        causal = key <= query
        if queries.prefix is not None:
            causal = causal | (keys.columns[:, None, None, :] < queries.prefix[:, None, None, None])
        limits.append(causal)
    if pattern is not None:
        by_column = of(queries.columns, keys.columns)
        by_position = of(queries.positions, keys.positions)
        # How near tokens are is a matter of columns, whatever their positions are called.
        of_heads = [
            each.allows(*(by_position if each.reach is None else by_column))
            for each in pattern.of_heads
        ]
        near = torch.cat(torch.broadcast_tensors(*of_heads), 1)
        if always is not None:
            near = near | always[:, None, None, :]
        limits.append(near)
    if queries.documents is not None and keys.documents is not None:
        query, key = of(queries.documents, keys.documents)
        limits.append(query == key)
    if queries.custom is not None:
        custom = queries.custom
        limits.append(custom if custom.ndim == 4 else custom[None, None])
    if keys.is_token is not None:
        limits.append(keys.is_token[:, None, None, :].bool())
    return reduce(torch.logical_and, limits) if limits else None


def mask_conditions(
    queries: SequenceInfo, keys: SequenceInfo, pattern: Pattern | None = None
) -> set[str]:
    """The names of the limits that `allowed` combines."""
    limits = {
        "causal": queries.causal,
        "num_keys": queries.num_keys is not None,
        "prefix": queries.prefix is not None,
        "pattern": pattern is not None,
        "documents": queries.documents is not None,
        "custom": queries.custom is not None,
        "padding": keys.is_token is not None,
    }
    return {name for name, is_set in limits.items() if is_set}


@dataclass(frozen=True)
class MaskPart:
    """The mask of some queries and the keys that they can see.

    Args:
        queries, keys: which of them; keys are int64 [S] where some of them are far.
        is_plain_causal: as of the mask.
        allowed: bool [1 or B, 1 or N, 1 or T, S]; None: all, or those that causality allows.
        bias: added to scores, [1 or B, N, T, S], with `allowed` in it.
        has_keys: bool [1 or B, 1 or N, 1 or T, 1]: which queries see any key; None: all.
    """

    queries: slice
    keys: slice | Tensor
    is_plain_causal: bool = False
    allowed: Tensor | None = None
    bias: Tensor | None = None
    has_keys: Tensor | None = None


class Mask:
    """Which keys the queries of a pass attend to, and what is added to their scores.

    It is one part; or, where queries see near keys alone, or where nothing is kept for backward
    and the whole would be large, several parts with some queries each.

    Args:
        queries: the context of the queries.
        keys: the context of the keys.
        pattern: that of the attention.
        bias: computes what is added to the scores of all layers, for each part alone, so that the
            memory of a long prompt is proportional to its length.
        num_heads: heads with a bias or scores of their own in memory; 1 where a kernel is given
            at most a mask that all heads share.
        eager: all scores are computed, since no kernel knows what is done to them.
        always: bool [B, S], keys that the pattern does not hide.
    """

    def __init__(
        self,
        queries: SequenceInfo,
        keys: SequenceInfo,
        pattern: Pattern | None = None,
        bias: Bias | None = None,
        *,
        num_heads: int = 1,
        eager: bool = False,
        always: Tensor | None = None,
    ) -> None:
        self.queries, self.keys, self.pattern, self.bias = queries, keys, pattern, bias
        self.always = always
        self.eager, self.num_heads = eager, num_heads if eager or bias is not None else 1
        num_queries, num_keys = queries.positions.shape[1], keys.positions.shape[1]
        self.limits = mask_conditions(queries, keys, pattern)
        if num_queries == 1 and queries.starts_together and self.limits == {"causal"}:
            self.limits = set()  # the last of all tokens sees them all
        self.slices = list(self._slices(num_queries, num_keys))
        entries = self.num_heads * num_queries * num_keys
        is_small = entries <= _MAX_MASK or torch.is_grad_enabled()
        self.parts = [self._part(*each) for each in self.slices] if is_small else None

    def __iter__(self) -> Iterator[MaskPart]:
        if self.parts is not None:
            return iter(self.parts)
        return (self._part(*each) for each in self.slices)

    @property
    def is_plain_causal(self) -> bool:
        """Whether causality from the first token is all, which kernels know."""
        kernel = self.bias is None and not self.eager
        return self.limits == {"causal"} and self.queries.is_prefill and kernel

    def _slices(self, queries: int, keys: int) -> Iterator[tuple[slice, slice | Tensor]]:
        """Some queries at a time, and the keys that they can see."""
        rows, before, after = queries, queries, keys
        reach = None if self.pattern is None else self.pattern.reach
        all_own = keys == queries and self.queries.is_prefill
        if reach is not None and all_own:
            block = max(_MIN_BLOCK, reach)
            left_alone = "causal" in self.limits and not self.limits & {"num_keys", "prefix"}
            ahead = 0 if left_alone else reach
            if 2 * (block + reach + ahead) <= keys:
                rows, before, after = block, reach, ahead
        if not (torch.is_grad_enabled() or self.is_plain_causal):
            seen = self.num_heads * min(keys, rows + before + after)
            rows = max(1, min(rows, _MAX_MASK // seen))
        for start in range(0, queries, rows):
            stop = min(start + rows, queries)
            first, end = max(0, start - before), min(keys, stop + after)
            far = self._always_outside(first, end) if end - first < keys else None
            if far is None:
                yield slice(start, stop), slice(first, end)
            else:
                near = torch.arange(first, end, device=far.device)
                yield slice(start, stop), torch.cat((near, far))

    def _always_outside(self, first: int, end: int) -> Tensor | None:
        """Columns outside of others in which any row has a key of `always`, int64 [G]."""
        if self.always is None:
            return None
        chosen = self.always.any(0)
        chosen[first:end] = False
        return chosen.nonzero()[:, 0]

    def _part(self, some: slice, near: slice | Tensor) -> MaskPart:
        plain, mask = self.is_plain_causal, None
        on_gpu = self.queries.positions.device.type != "cpu"
        if plain and (on_gpu or not torch.is_grad_enabled()):
            return MaskPart(some, near, plain)
        queries, keys = self.queries.subset(some, near), self.keys.subset(near)
        if self.limits:
            always = None if self.always is None else self.always[:, near]
            mask = allowed(queries, keys, self.pattern, always)
        bias = None if self.bias is None else self.bias(queries, keys)
        if bias is not None and mask is not None:
            bias = bias.masked_fill(~mask, lowest(bias.dtype))
        has_keys = None
        if mask is not None and self.limits - _ALLOW_SELF:
            has_keys = mask.any(-1, keepdim=True)
        return MaskPart(some, near, plain, mask, bias, has_keys)


def lowest(dtype: torch.dtype) -> float:
    """What stands for -inf in scores, so that a row of nothing else has no NaN."""
    return torch.finfo(dtype).min / 2
