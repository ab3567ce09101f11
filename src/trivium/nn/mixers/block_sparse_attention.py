"""Attention to a few blocks of a long text: BigBird.

Shape letters: B batch, T positions, L positions of whole blocks, M blocks, C blocks that one sees,
S tokens of a block, G queries that see all, D width, N heads, K key-value heads, H head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.nn.attend import attend, attention_probabilities
from trivium.nn.context import Context
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import AttentionMixer, Prepared
from trivium.spec.mixers.block_sparse_attention import BlockSparseAttention


@dataclass(frozen=True)
class Blocks:
    """Which blocks see which in rows of L tokens, and which tokens see all.

    Args:
        seen: int64 [B, N, M, C], the blocks that a block sees; some are masked.
        copied: int64 [B * N * M * C], the same among the blocks of all rows and key-value heads.
        mask: of the queries of a block and the keys of those it sees, for N * M heads.
        columns: int64 [B, 1, G, 1], queries of which some see all.
        see_all: bool [B, 1, G, 1], which of them do.
        mask_all: of these queries and all keys.
    """

    seen: Tensor
    copied: Tensor
    mask: Mask
    columns: Tensor
    see_all: Tensor
    mask_all: Mask

    def own(self, x: Tensor) -> Tensor:
        """Queries of every block: [B, N, L, H] -> [B, N * M, S, H]."""
        return x.unflatten(2, (self.seen.shape[2], -1)).flatten(1, 2)

    def copies(self, x: Tensor) -> Tensor:
        """Keys or values of the blocks that each sees: [B, K, L, H] -> [B, N * M, C * S, H]."""
        rows, heads, count, _ = self.seen.shape
        each = x.unflatten(2, (count, -1)).flatten(0, 2).flatten(1)  # [B * K * M, S * H]
        copies = each.index_select(0, self.copied)
        return copies.view(rows, heads * count, -1, x.shape[3])

    def of_columns(self, x: Tensor) -> Tensor:
        """Queries of which some see all: [B, N, L, H] -> [B, N, G, H]."""
        return x.gather(2, self.columns.expand(-1, x.shape[1], -1, x.shape[3]))

    def among_all(self, weights: Tensor) -> Tensor:
        """[B, N * M, S, C * S] -> [B, N, L, L], 0 for blocks that are not seen."""
        rows, heads, count, seen = self.seen.shape
        size = weights.shape[2]
        weights = weights.view(rows, heads, count, size, seen, size)
        whole = weights.new_zeros(rows, heads, count, size, count, size)
        whole.scatter_add_(4, self.seen[:, :, :, None, :, None].expand_as(weights), weights)
        return whole.flatten(4).flatten(2, 3)

    def with_all(self, near: Tensor, far: Tensor) -> Tensor:
        """[B, N, L, ...] with [B, N, G, ...] in the rows of tokens that see all."""
        rows = torch.where(self.see_all, far.to(near.dtype), self.of_columns(near))
        return near.scatter(2, self.columns.expand_as(rows), rows)


@dataclass(frozen=True)
class PreparedBlocks(Prepared):
    """What is prepared; `blocks` is None where all tokens see all."""

    blocks: Blocks | None = None


class BlockSparseMixer(AttentionMixer, of=BlockSparseAttention):
    """Blocks of queries attend to copies of the blocks of keys that they see, all in one product.

    What a token sees depends on its own text alone: the last block is that of the last real
    token, and a text of at most `dense_length` tokens is dense in any batch. In `transformers`
    both follow from the longest text of a batch. The random blocks are those of `transformers`
    for the same seed, but in rows of 1024, 3072 and 4096 tokens, where it draws from more
    blocks. Its attention weights have no dropout in long texts; ours do.

    Source: Zaheer et al. 2020, section 2 and appendix D.
    """

    part: BlockSparseAttention

    def prepare_for(self, context: Context, keys: Context, table: nn.Module | None) -> Prepared:
        """See `AttentionMixer.prepare_for`. Raises SpecError for limits other than padding."""
        self.refuse_limits(context, but={"padding"})
        mask, length = Mask(context, keys), keys.columns.shape[1]
        if length <= self.part.dense_length:
            return PreparedBlocks(mask)
        real = keys.real
        if real is None:
            real = torch.ones(1, length, device=keys.columns.device)
        return PreparedBlocks(mask, blocks=self._blocks(self._padded(real.bool())))

    def _blocks(self, real: Tensor) -> Blocks:
        """Of rows whose real tokens are [B, L]."""
        part, device = self.part, real.device
        size, (rows, length) = part.block_size, real.shape
        columns = torch.arange(length, device=device)
        end = ((columns + 1) * real).amax(1, keepdim=True)  # [B, 1]
        last = (end - 1).clamp(min=0) // size
        seen, is_inner = self._seen(last, length // size)
        row = torch.arange(rows, device=device)[:, None, None, None]
        head = torch.arange(part.num_heads, device=device)[:, None, None]
        head = head * part.kv_heads // part.num_heads
        copied = (row * part.kv_heads + head) * (length // size) + seen
        allowed = real.unflatten(1, (-1, size))[row, seen]  # [B, N, M, C, S]
        allowed[:, :, :, 2:5] &= is_inner[..., None]
        allowed = allowed.flatten(1, 2).flatten(2)[:, :, None]
        ends = (columns < size) | (columns // size == last) | (end <= part.dense_length)
        see_all = ends & real
        most = max(1, int(see_all.sum(1).max()))
        chosen = see_all.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        of = partial(Context.of_length, device=device)
        return Blocks(
            seen,
            copied.flatten(),
            Mask(of(size, custom=allowed), of(allowed.shape[-1])),
            chosen[:, None, :, None],
            see_all.gather(1, chosen)[:, None, :, None],
            Mask(of(most), of(length, real=real)),
        )

    def _seen(self, last: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The blocks that each sees, of rows whose last block is [B, 1]: int64 [B, N, M, C].

        Also which of the three neighbours count, bool [B, 1, M, 3]: the first and the last block
        are there already.
        """
        part, shape = self.part, (len(last), self.part.num_heads, count, -1)
        near = torch.arange(count)[:, None] + torch.arange(-1, 2)  # [M, 3]
        random = np.zeros((part.num_heads, count, part.num_random), np.int64)
        if self.training:
            random = random_blocks(part.seed, *random.shape)
        fixed = torch.zeros(1, 1), near.clamp(0, count - 1), torch.from_numpy(random)
        first, near, random = (each.long().to(last.device) for each in fixed)
        last = last[..., None, None]
        seen = torch.cat([each.expand(shape) for each in (first, last, near, random)], -1)
        is_inner = (near > 0) & (near < last)  # [B, 1, M, 3]
        return seen, is_inner

    def attended(self, x: Tensor, context: Context, state: Any, prepared: Prepared) -> Tensor:
        """See `AttentionMixer.attended`."""
        assert isinstance(prepared, PreparedBlocks)
        if (blocks := prepared.blocks) is None:
            return super().attended(x, context, state, prepared)
        query, key, value = map(self._padded, self._query_key_value(x, context, state, prepared))
        mix = partial(
            attend,
            scale=self.scale,
            soft_cap=self.soft_cap,
            dropout=self.dropout if self.training else 0.0,
            max_scores=self.max_scores,
        )
        near = mix(blocks.own(query), blocks.copies(key), blocks.copies(value), blocks.mask)
        far = mix(blocks.of_columns(query), key, value, blocks.mask_all)
        return blocks.with_all(near.reshape(query.shape), far)[:, :, : x.shape[1]]

    def probabilities(
        self, x: Tensor, context: Context, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """See `AttentionMixer.probabilities`; those of a block that is seen twice are summed."""
        prepared = prepared or self.prepare(context, state)
        assert isinstance(prepared, PreparedBlocks)
        if (blocks := prepared.blocks) is None:
            return super().probabilities(x, context, state, prepared)
        query, key, _ = self._query_key_value(x, context, state, prepared)
        query, key = self._padded(query.float()), self._padded(key.float())
        weigh = partial(attention_probabilities, scale=self.scale, soft_cap=self.soft_cap)
        near = weigh(blocks.own(query), blocks.copies(key), blocks.mask)
        far = weigh(blocks.of_columns(query), key, blocks.mask_all)
        whole = blocks.with_all(blocks.among_all(near), far)
        return whole[:, :, : x.shape[1], : x.shape[1]]

    def _padded(self, x: Tensor) -> Tensor:
        """With zeros up to whole blocks: [..., T, H] -> [..., L, H], or of a mask [B, T]."""
        axis = 1 if x.ndim == 2 else 2
        missing = -x.shape[axis] % self.part.block_size
        return F.pad(x, (0, 0) * (x.ndim - 1 - axis) + (0, missing))


@lru_cache(maxsize=256)
def random_blocks(seed: int, num_heads: int, count: int, number: int) -> np.ndarray:
    """Blocks that blocks see beside others, for the heads of a layer: int64 [N, M, number].

    They are drawn among the first 5 + 2 `number`, without the first and the last of these and the
    block's neighbours: those of long texts are near its beginning, as in the published models.
    """
    generator, choices = np.random.RandomState(seed), 5 + 2 * number
    blocks = np.zeros((num_heads, count, number), np.int64)
    for block in range(1, count):
        others = {0, block - 1, block, block + 1, choices - 1}
        others |= {choices - 2} if block == 1 else {1} if block == choices - 2 else set()
        for head in range(num_heads):
            drawn = [each for each in generator.permutation(choices) if each not in others]
            blocks[head, block] = drawn[:number]
    return blocks
