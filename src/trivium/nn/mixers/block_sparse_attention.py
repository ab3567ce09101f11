"""Attention to a few blocks of a long text: BigBird.

Shape letters: B batch, T positions, L positions of whole blocks, M blocks, C blocks that one sees,
S tokens of a block, G queries that may see all, D width, N heads, K key-value heads, H head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import Attention, AttentionModule, Prepared
from trivium.nn.part import Count
from trivium.nn.sequence_info import SequenceInfo


class BlockSparseAttention(Attention):
    """Attention of blocks of `block_size` tokens to a few other blocks: BigBird.

    A block sees itself and its neighbours, the first and the last one, and `num_random` more. The
    first and the last one see all. In a text of at most `dense_length` tokens all tokens do.

    While it trains, every head draws its random blocks from `seed`, the same ones in every step;
    otherwise the first block is in the place of each, as in `transformers`. In the code of the
    authors the random blocks stay. Layers whose seeds differ draw other blocks.

    Source: Zaheer et al. 2020, section 2, with global tokens inside of the text (ITC).
    """

    decodes: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    kind: Literal["block-sparse-attention"] = "block-sparse-attention"  # type: ignore[assignment]
    block_size: Count
    num_random: Annotated[int, Field(ge=0, lt=2**15)]
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    def check(self) -> None:
        """Raise SpecError for a pattern or for positions in attention."""
        super().check()
        if self.positions or self.pattern:
            raise SpecError(
                f"{self.kind} has a pattern of its own and no positions: leave pattern and "
                "positions out, and give the model absolute ones (embedding.positions)."
            )

    @property
    def dense_length(self) -> int:
        """Tokens of the longest text in which all see all: 5 + 2 `num_random` blocks."""
        return (5 + 2 * self.num_random) * self.block_size

    @property
    def divided(self) -> dict[str, int]:
        """See `Mixer.divided`: nothing, since heads draw their blocks in turn."""
        return {}

    def seen(self, length: float) -> float:
        """Keys that are computed of a query, on average in a text of so many tokens.

        Those of the first and the last block are computed twice: as of others, and of all tokens.
        """
        if length <= self.dense_length:
            return length
        return (7 + self.num_random) * self.block_size

    def flops(self, attended: float) -> float:
        """See `Attention.flops`, of the keys that are computed."""
        return super().flops(self.seen(attended))

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """See `Attention.activation_numel`; of long texts also the keys and values of the blocks
        that each sees, and queries and outputs where they are merged.
        """
        copies = 0 if length <= self.dense_length else 2 * (6 + self.num_random)
        kept = super().activation_numel(
            int(self.seen(length)), item=item, on_cpu=on_cpu, dropout=dropout
        )
        return kept + copies * self.num_heads * self.head_dim

    def build(self, d_model: int, **options: Any) -> BlockSparseAttentionModule:
        """See `Mixer.build`."""
        return BlockSparseAttentionModule(self, d_model, **options)


@dataclass(frozen=True, kw_only=True)
class Blocks(Prepared):
    """Which blocks of rows of L tokens see which, and which tokens see all.

    Args:
        mask: of the queries of a block and the keys that it sees, for N * M heads.
        seen: int64 [1 or B, N, M, C], the blocks of its row that a block sees; some of them are
            masked.
        columns: int64 [1 or B, 1, G, 1], of tokens some of which see all.
        see_all: bool [1 or B, 1, G, 1], which of them do.
        mask_all: of these tokens and all keys.
    """

    seen: Tensor
    columns: Tensor
    see_all: Tensor
    mask_all: Mask

    def own(self, x: Tensor) -> Tensor:
        """Queries of every block: [B, N, L, H] -> [B, N * M, S, H]."""
        return x.unflatten(2, (self.seen.shape[2], -1)).flatten(1, 2)

    def copies(self, x: Tensor) -> Tensor:
        """Keys or values of the blocks that each sees: [B, K, L, H] -> [B, N * M, C * S, H]."""
        (rows, kv_heads), (heads, count) = x.shape[:2], self.seen.shape[1:3]
        each = x.unflatten(2, (count, -1)).flatten(0, 2).flatten(1)  # [B * K * M, S * H]
        of_head = torch.arange(rows * kv_heads, device=x.device).view(rows, kv_heads, 1, 1)
        of_head = of_head.repeat_interleave(heads // kv_heads, 1)
        copies = each.index_select(0, (of_head * count + self.seen).flatten())
        return copies.view(rows, heads * count, -1, x.shape[3])

    def of_columns(self, x: Tensor) -> Tensor:
        """[B, N, L, H] -> [B, N, G, H]."""
        return x.gather(2, self.columns.expand(*x.shape[:2], -1, x.shape[3]))

    def merged(self, few: Tensor, full: Tensor) -> Tensor:
        """[B, N, L, H] with [B, N, G, H] in the rows of tokens that see all."""
        rows = torch.where(self.see_all, full.to(few.dtype), self.of_columns(few))
        return few.scatter(2, self.columns.expand_as(rows), rows)


class BlockSparseAttentionModule(AttentionModule):
    """Blocks of queries attend to copies of the blocks of keys that they see, all in one product.

    What a token sees depends on its own text alone: the last block is that of the last real
    token, and a text of at most `dense_length` tokens is dense in any batch. In `transformers`
    both follow from the longest text of a batch. The random blocks are those of `transformers`
    for the same seed, but in rows of 1024, 3072 and 4096 tokens, for which it draws from more
    blocks. Its weights of attention have no dropout in long texts; ours have.

    Source: Zaheer et al. 2020, section 2 and appendix D.
    """

    part: BlockSparseAttention

    def prepare_for(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> Prepared:
        """See `AttentionModule.prepare_for`. Raises SpecError for limits other than padding."""
        self.refuse_limits(sequence, but={"padding"})
        columns = keys.columns
        if columns.shape[1] <= self.part.dense_length:
            return super().prepare_for(sequence, keys, table)
        is_token = torch.ones_like(columns) if keys.is_token is None else keys.is_token
        missing = -columns.shape[1] % self.part.block_size
        return self._blocks(F.pad(is_token, (0, missing)).bool())

    def _blocks(self, is_token: Tensor) -> Blocks:
        """Return the blocks of rows with real tokens [B, L], or [1, L] if all rows are alike."""
        part, size, device = self.part, self.part.block_size, is_token.device
        rows, heads, count = len(is_token), part.num_heads, is_token.shape[1] // size
        columns = torch.arange(is_token.shape[1], device=device)
        end = ((columns + 1) * is_token).amax(1, keepdim=True)  # [B, 1]
        last = (end - 1).clamp(min=0) // size
        near = torch.arange(count, device=device)[:, None] + torch.arange(-1, 2, device=device)
        random = torch.zeros(heads, count, part.num_random, dtype=torch.int64)
        if self.training:
            random = random_blocks(part.seed, heads, count, part.num_random)
        first, ends = near.new_zeros(1, 1), last[..., None, None]
        parts = (first, ends, near.clamp(0, count - 1), random.to(device))
        seen = torch.cat([each.expand(rows, heads, count, -1) for each in parts], -1)
        row = torch.arange(rows, device=device)[:, None, None, None]
        allowed = is_token.unflatten(1, (count, size))[row, seen]  # [B, N, M, C, S]
        # A neighbour that is the first or the last block is there already.
        allowed[:, :, :, 2:5] &= ((near > 0) & (near < ends))[..., None]
        allowed = allowed.flatten(3).flatten(1, 2)[:, :, None]
        at_ends = (columns < size) | (columns // size == last)
        see_all = (at_ends | (end <= part.dense_length)) & is_token
        most = max(1, int(see_all.sum(1).max()))
        chosen = see_all.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        of = partial(SequenceInfo.of_length, device=device)
        return Blocks(
            seen=seen,
            mask=Mask(of(size, custom=allowed), of(allowed.shape[-1])),
            columns=chosen[:, None, :, None],
            see_all=see_all.gather(1, chosen)[:, None, :, None],
            mask_all=Mask(of(most), of(len(columns), is_token=is_token)),
        )

    def attended(self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared) -> Tensor:
        """See `AttentionModule.attended`."""
        if not isinstance(prepared, Blocks):
            return super().attended(x, sequence, state, prepared)
        return self._mixed(*self._query_key_value(x, sequence, state, prepared), prepared)

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, blocks: Blocks) -> Tensor:
        """Values of any width, mixed: [B, N, T, H], two of [B, K, T, H] -> [B, N, T, H]."""
        length = query.shape[2]
        missing = -length % self.part.block_size
        query, key, value = (F.pad(each, (0, 0, 0, missing)) for each in (query, key, value))
        copies = blocks.copies(key), blocks.copies(value)
        few = self.attend_with(blocks.own(query), *copies, blocks.mask)
        few = few.unflatten(1, (query.shape[1], -1)).flatten(2, 3)
        full = self.attend_with(blocks.of_columns(query), key, value, blocks.mask_all)
        return blocks.merged(few, full)[:, :, :length]

    def probabilities(
        self, x: Tensor, sequence: SequenceInfo, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """See `AttentionModule.probabilities`: what becomes of values that are the unit matrix."""
        prepared = prepared or self.prepare(sequence, state)
        if not isinstance(prepared, Blocks):
            return super().probabilities(x, sequence, state, prepared)
        query, key, _ = self._query_key_value(x, sequence, state, prepared)
        units = torch.eye(key.shape[2], device=key.device).expand(*key.shape[:2], -1, -1)
        return self._mixed(query.float(), key.float(), units.float(), prepared)


@lru_cache(maxsize=256)
def random_blocks(seed: int, num_heads: int, count: int, number: int) -> Tensor:
    """Blocks that a block sees beside others, for every head: int64 [N, M, number].

    They are drawn among the first 5 + 2 `number`, without the first and the last of these and
    the block's neighbours: also the authors' are near the beginning of long texts.
    """
    generator, choices = np.random.RandomState(seed), 5 + 2 * number
    blocks = torch.zeros(num_heads, count, number, dtype=torch.int64)
    for block in range(1, count):
        others = {0, block - 1, block, block + 1, choices - 1}
        others |= {choices - 2} if block == 1 else {1} if block == choices - 2 else set()
        for head in range(num_heads):
            drawn = [int(each) for each in generator.permutation(choices) if each not in others]
            blocks[head, block] = torch.tensor(drawn[:number])
    return blocks
