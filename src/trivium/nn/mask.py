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
"""A function that maps query and key metadata to the bias of their scores: [1 or B, N, T, S]."""

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

    A query attends to a key only if all conditions hold, such as causality and padding (see
    `mask_conditions`). If no condition is set, the result is None.

    Args:
        queries: the metadata of the query tokens, which also set causality, prefix and custom mask.
        keys: the metadata of the key tokens.
        pattern: the pattern of sparse or sliding-window attention; None: no pattern.
        always: bool [B, S], True for keys that are exempt from the pattern; None: no such keys.
    """

    def add_axes(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Add axes to a query field [B, T] and a key field [B, S] so that they broadcast.

        The two results broadcast to [B, 1, T, S].
        """
        return query[:, None, :, None], key[:, None, None, :]

    conditions = []
    if queries.causal:
        query, key = add_axes(queries.columns, keys.columns)
        causal = key <= query
        if queries.prefix is not None:
            causal = causal | (key < queries.prefix[:, None, None, None])
        conditions.append(causal)
    if pattern is not None:
        by_column = add_axes(queries.columns, keys.columns)
        by_position = add_axes(queries.positions, keys.positions)
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
        query, key = add_axes(queries.documents, keys.documents)
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
    """Return the names of the conditions that restrict attention, such as {"causal", "padding"}.

    Args:
        queries: the metadata of the query tokens.
        keys: the metadata of the key tokens.
        pattern: the pattern of sparse or sliding-window attention; None: no pattern.
    """
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
    """A block of the attention mask: some of the queries, and the keys that they can attend to.

    Args:
        queries: the range of the queries along axis T.
        keys: the range of the keys along axis S; the indices, int64 [S], if they are not adjacent.
        is_plain_causal: whether a kernel's `is_causal` can replace the mask (see
            `Mask.is_plain_causal`).
        attention_mask: bool [1 or B, 1 or N, 1 or T, S]; None: the queries attend to all keys, or
            with `is_plain_causal` to all keys that are not later.
        bias: the position bias added to scores, [1 or B, N, T, S]. Where `attention_mask` is False,
            the bias is `masked_score`. None: no position bias.
        has_keys: bool [1 or B, 1 or N, 1 or T, 1], False for queries whose keys are all masked;
            None: every query attends to a key.
    """

    queries: slice
    keys: slice | Tensor
    is_plain_causal: bool = False
    attention_mask: Tensor | None = None
    bias: Tensor | None = None
    has_keys: Tensor | None = None


class _Tiling(NamedTuple):
    """How the scores [T, S] are divided into parts of `rows` queries each.

    The keys of a part begin `before` positions before its first query. They end `after` positions
    after its last query. For example, rows = 2, before = 2, after = 0:

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
        """Yield the range of the queries and the range of the keys of every part, as slices."""
        if self.rows >= num_queries:  # one part; a loop would fix the length in `torch.export`
            yield slice(0, num_queries), slice(0, num_keys)
            return
        for start in range(0, num_queries, self.rows):
            stop = min(start + self.rows, num_queries)
            first, end = max(0, start - self.before), min(num_keys, stop + self.after)
            yield slice(start, stop), slice(first, end)


class Mask:
    """The attention mask of a forward pass, including the position bias. Iterate over its parts.

    Usually there is one part with all queries. Local (sliding-window) attention has several parts
    with some of the queries each, and so has a large mask if no gradients are computed (`_Tiling`).

    Args:
        queries: the metadata of the query tokens.
        keys: the metadata of the key tokens.
        pattern: the pattern of sparse or sliding-window attention; None: no pattern.
        bias: the function that computes the position bias of the scores; None: no bias. It is
            called for each part separately, so that the memory for a long prompt is proportional to
            the length of the prompt.
        num_heads: the number of heads. It limits the size of a part if there is a bias, or if
            `eager` is set, because then each head has its own bias or scores in memory.
        eager: whether the scores are computed by eager attention instead of a fused kernel.
        always: bool [B, S], True for keys that are exempt from the pattern; None: no such keys.
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
        if num_queries == 1 and queries.has_equal_starts and self.conditions == {"causal"}:
            self.conditions = set()  # the last of all tokens attends to them all
        tiling = self._choose_tiling(num_queries, num_keys)
        self.slices = [
            (rows, self._add_always_columns(columns, num_keys))
            for rows, columns in tiling.parts(num_queries, num_keys)
        ]
        self.parts = self._prepare_parts()

    def __iter__(self) -> Iterator[MaskPart]:
        """Iterate over the parts of the mask.

        The parts of a large mask are computed one at a time if no gradients are computed.
        """
        if self.parts is not None:
            return iter(self.parts)
        return (self._build_mask_part(*each) for each in self.slices)

    @property
    def is_plain_causal(self) -> bool:
        """Whether the mask is only causal, so that a kernel with `is_causal` can replace it.

        This requires that the queries are the last of the keys, and that there are no cached
        tokens, no other conditions (such as padding), no position bias and no eager attention.
        """
        kernel = self.bias is None and not self.eager
        return self.conditions == {"causal"} and self.queries.are_last_keys and kernel

    def _prepare_parts(self) -> list[MaskPart] | None:
        """Return the parts; None if they are large, and made one at a time when they are needed."""
        num_queries, num_keys = self.queries.positions.shape[1], self.keys.positions.shape[1]
        entries = self.num_heads * num_queries * num_keys
        is_small = entries <= _MAX_MASK or torch.is_grad_enabled()
        return [self._build_mask_part(*each) for each in self.slices] if is_small else None

    def _choose_tiling(self, num_queries: int, num_keys: int) -> _Tiling:
        """Return how the scores are divided into parts.

        For local attention, each part has only the keys near its queries. If no gradients are
        computed, the number of queries per part is also limited, to save memory (except with
        `is_plain_causal`). Otherwise there is one part.
        """
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
        """Return the key indices of a part, extended by keys that are exempt from the pattern.

        Args:
            columns: the range of the keys near the queries of the part.
            num_keys: the number of all keys.

        Returns:
            `columns`, if there are no exempt keys or `columns` covers all keys. Otherwise the
            indices, int64, of `columns` and of all keys that are exempt in a row of the batch.
        """
        if self.always is None or columns == slice(0, num_keys):
            return columns
        key_idx = torch.arange(columns.start, columns.stop, device=self.always.device)
        outside = self.always.any(0)
        outside[columns] = False
        return torch.cat((key_idx, outside.nonzero()[:, 0]))

    def _build_mask_part(self, query_idx: slice, key_idx: slice | Tensor) -> MaskPart:
        """Return the part of the mask with the queries `query_idx` and the keys `key_idx`.

        Both are index ranges in the row, or the indices themselves.
        """
        plain, mask = self.is_plain_causal, None
        on_gpu = self.queries.positions.device.type != "cpu"
        if plain and (on_gpu or not torch.is_grad_enabled()):
            return MaskPart(query_idx, key_idx, plain)
        queries, keys = self.queries.subset(query_idx, key_idx), self.keys.subset(key_idx)
        if self.conditions:
            always = None if self.always is None else self.always[:, key_idx]
            mask = attention_mask(queries, keys, self.pattern, always)
        bias = None if self.bias is None else self.bias(queries, keys)
        if bias is not None and mask is not None:
            bias = bias.masked_fill(~mask, masked_score(bias.dtype))
        has_keys = None
        if mask is not None and self.conditions - _ALLOW_SELF:
            has_keys = mask.any(-1, keepdim=True)
        return MaskPart(query_idx, key_idx, plain, mask, bias, has_keys)


def masked_score(dtype: torch.dtype) -> float:
    """Return the lowest score of a dtype, which replaces -inf for masked keys.

    The score is finite, so that the softmax over a row of masked keys is not NaN.
    """
    return torch.finfo(dtype).min / 2
