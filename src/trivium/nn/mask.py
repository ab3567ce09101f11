"""The attention mask: which keys each query attends to, decided in one place.

A stack makes one mask per forward pass for all layers with equal mixers.

Shape letters: B batch, N heads, T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from trivium.nn.patterns import Pattern
from trivium.nn.sequence_info import SequenceInfo

Bias = Callable[[SequenceInfo, SequenceInfo], Tensor]
"""A function of queries and keys that returns what is added to their scores: [1 or B, N, T, S]."""

# The maximum number of entries of a mask [T, S], or of a bias or scores [N, T, S], that are in
# memory at a time if nothing is kept for the backward pass.
_MAX_MASK = 2**22
# The minimum number of queries in a part of local attention.
_MIN_ROWS = 128
# Conditions under which every token still attends at least to itself.
_ALLOW_SELF = {"causal", "prefix", "documents"}


def attention_mask(
    queries: SequenceInfo,
    keys: SequenceInfo,
    pattern: Pattern | None = None,
    always: Tensor | None = None,
) -> Tensor | None:
    """Return the attention mask: bool [1 or B, 1 or N, 1 or T, S], True where a query attends.

    A query attends to a key only if all conditions hold; `mask_conditions` names those that are
    set. Without a condition the result is None.

    Args:
        queries: the sequence of the queries, which also sets causality, prefix and custom mask.
        keys: the sequence of the keys.
        pattern: the pattern of sparse or sliding-window attention.
        always: bool [B, S], keys that the pattern does not hide.
    """

    def outer(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Add axes so that queries [B, T] and keys [B, S] broadcast to [B, 1, T, S]."""
        return query[:, None, :, None], key[:, None, None, :]

    conditions = []
    if queries.causal:
        query, key = outer(queries.columns, keys.columns)
        causal = key <= query
        if queries.prefix is not None:
            causal = causal | (key < queries.prefix[:, None, None, None])
        conditions.append(causal)
    if pattern is not None:
        by_column = outer(queries.columns, keys.columns)
        by_position = outer(queries.positions, keys.positions)
        # Distances are differences of columns, whatever the position ids are.
        head_patterns = [
            each.allows(*(by_position if each.reach is None else by_column))
            for each in pattern.head_patterns
        ]
        in_pattern = torch.cat(torch.broadcast_tensors(*head_patterns), 1)
        if always is not None:
            in_pattern = in_pattern | always[:, None, None, :]
        conditions.append(in_pattern)
    if queries.documents is not None and keys.documents is not None:
        query, key = outer(queries.documents, keys.documents)
        conditions.append(query == key)
    if queries.custom is not None:
        custom = queries.custom
        conditions.append(custom if custom.ndim == 4 else custom[None, None])
    if keys.is_token is not None:
        conditions.append(keys.is_token[:, None, None, :].bool())
    return reduce(torch.logical_and, conditions) if conditions else None


def mask_conditions(
    queries: SequenceInfo, keys: SequenceInfo, pattern: Pattern | None = None
) -> set[str]:
    """Return the names of the conditions that `attention_mask` combines."""
    conditions = {
        "causal": queries.causal,
        "num_keys": queries.num_keys is not None,
        "prefix": queries.prefix is not None,
        "pattern": pattern is not None,
        "documents": queries.documents is not None,
        "custom": queries.custom is not None,
        "padding": keys.is_token is not None,
    }
    return {name for name, is_set in conditions.items() if is_set}


@dataclass(frozen=True)
class MaskPart:
    """The attention mask of some queries, and the keys that these queries can attend to.

    Args:
        queries: the columns of the queries.
        keys: the columns of the keys; int64 [S] if they are not adjacent.
        is_plain_causal: see `Mask.is_plain_causal`.
        attention_mask: bool [1 or B, 1 or N, 1 or T, S]; None: all keys, or all that causality
            allows.
        bias: what is added to scores, [1 or B, N, T, S], lowest where the mask is False.
        has_keys: bool [1 or B, 1 or N, 1 or T, 1], False for queries that attend to no key; None:
            every query attends to a key.
    """

    queries: slice
    keys: slice | Tensor
    is_plain_causal: bool = False
    attention_mask: Tensor | None = None
    bias: Tensor | None = None
    has_keys: Tensor | None = None


class _Tiling(NamedTuple):
    """How the scores [T, S] are divided into parts of `rows` queries each.

    A part has the keys from `before` columns before its first query to `after` columns after its
    last query. For example, rows = 2, before = 2, after = 0:

        queries   keys 0 1 2 3 4 5 6 7
        0 and 1        # # . . . . . .
        2 and 3        # # # # . . . .
        4 and 5        . . # # # # . .
        6 and 7        . . . . # # # #
    """

    rows: int
    before: int
    after: int

    def parts(self, num_queries: int, num_keys: int) -> Iterator[tuple[slice, slice]]:
        """Yield the columns of the queries and of the keys of every part."""
        for start in range(0, num_queries, self.rows):
            stop = min(start + self.rows, num_queries)
            first, end = max(0, start - self.before), min(num_keys, stop + self.after)
            yield slice(start, stop), slice(first, end)


class Mask:
    """The attention mask of a forward pass and the bias of its scores, part by part.

    There is one part, except for local attention, and for large masks if nothing is kept for the
    backward pass: these have several parts with some of the queries each (`_Tiling`).

    Args:
        queries: the sequence of the queries.
        keys: the sequence of the keys.
        pattern: the pattern of sparse or sliding-window attention.
        bias: the function that computes what is added to the scores of all layers. A bias is
            computed for each part separately, so that the memory of a long prompt is proportional
            to its length.
        num_heads: the number of heads with separate biases or scores in memory; 1 if a kernel gets
            at most a mask that all heads share.
        eager: whether all scores are computed outside of a kernel.
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
        self.conditions = mask_conditions(queries, keys, pattern)
        if num_queries == 1 and queries.starts_together and self.conditions == {"causal"}:
            self.conditions = set()  # the last of all tokens attends to them all
        tiling = self._choose_tiling(num_queries, num_keys)
        self.slices = [
            (rows, self._add_always_columns(columns, num_keys))
            for rows, columns in tiling.parts(num_queries, num_keys)
        ]
        entries = self.num_heads * num_queries * num_keys
        is_small = entries <= _MAX_MASK or torch.is_grad_enabled()
        self.parts = [self._build_part(*each) for each in self.slices] if is_small else None

    def __iter__(self) -> Iterator[MaskPart]:
        """Iterate over the parts; large masks without gradients are computed one by one."""
        if self.parts is not None:
            return iter(self.parts)
        return (self._build_part(*each) for each in self.slices)

    @property
    def is_plain_causal(self) -> bool:
        """Whether causality from the first token is the only condition, which kernels support."""
        kernel = self.bias is None and not self.eager
        return self.conditions == {"causal"} and self.queries.is_prefill and kernel

    def _choose_tiling(self, num_queries: int, num_keys: int) -> _Tiling:
        """Return the tiling of local attention, or of all queries with all keys."""
        tiling = _Tiling(num_queries, before=num_queries, after=num_keys)
        reach = None if self.pattern is None else self.pattern.reach
        if reach is not None and num_keys == num_queries and self.queries.is_prefill:
            is_causal = "causal" in self.conditions
            ahead = 0 if is_causal and not self.conditions & {"num_keys", "prefix"} else reach
            local = _Tiling(max(_MIN_ROWS, reach), before=reach, after=ahead)
            if 2 * sum(local) <= num_keys:  # at most half of the scores
                tiling = local
        if torch.is_grad_enabled() or self.is_plain_causal:
            return tiling
        width = self.num_heads * min(num_keys, sum(tiling))
        return tiling._replace(rows=max(1, min(tiling.rows, _MAX_MASK // width)))

    def _add_always_columns(self, columns: slice, num_keys: int) -> slice | Tensor:
        """Return columns and those outside of them in which any row has a key of `always`."""
        if self.always is None or columns == slice(0, num_keys):
            return columns
        near = torch.arange(columns.start, columns.stop, device=self.always.device)
        outside = self.always.any(0)
        outside[columns] = False
        return torch.cat((near, outside.nonzero()[:, 0]))

    def _build_part(self, some: slice, near: slice | Tensor) -> MaskPart:
        """Return the mask of the queries in the columns `some`, with keys in the columns `near`."""
        plain, mask = self.is_plain_causal, None
        on_gpu = self.queries.positions.device.type != "cpu"
        if plain and (on_gpu or not torch.is_grad_enabled()):
            return MaskPart(some, near, plain)
        queries, keys = self.queries.subset(some, near), self.keys.subset(near)
        if self.conditions:
            always = None if self.always is None else self.always[:, near]
            mask = attention_mask(queries, keys, self.pattern, always)
        bias = None if self.bias is None else self.bias(queries, keys)
        if bias is not None and mask is not None:
            bias = bias.masked_fill(~mask, masked_score(bias.dtype))
        has_keys = None
        if mask is not None and self.conditions - _ALLOW_SELF:
            has_keys = mask.any(-1, keepdim=True)
        return MaskPart(some, near, plain, mask, bias, has_keys)


def masked_score(dtype: torch.dtype) -> float:
    """Return the number used as -inf in scores; it is finite, so that masked rows have no NaN."""
    return torch.finfo(dtype).min / 2
