"""Block-sparse attention: BigBird.

Shape letters: B batch, T positions, L positions padded to whole blocks, M blocks, C key blocks of a
query block, S tokens of a block, G queries with full attention, D d_model, N heads, K key-value
heads, H head_dim.
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
    """BigBird: each block of `block_size` queries attends to a few blocks of keys.

    A block attends to itself, its neighbours, the first block, the last block and `num_random`
    random blocks. The first and the last block attend to all tokens. In a text of at most
    `dense_length` tokens all tokens attend to all tokens.

    In training, every head has its own random blocks, drawn from `seed` and the same in every step.
    In evaluation every random block is replaced by the first block, as in `transformers`; the
    authors' code keeps the random blocks. Layers with different seeds draw different blocks.

    Source: Zaheer et al. 2020, section 2, with global tokens inside of the text (ITC).
    """

    supports_decoder: ClassVar[bool] = False
    supports_packing: ClassVar[bool] = False
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
        """The maximum length of texts with full attention: 5 + 2 `num_random` blocks."""
        return (5 + 2 * self.num_random) * self.block_size

    @property
    def tp_fields(self) -> dict[str, int]:
        """See `Mixer.tp_fields`. It is empty because all heads share one random generator."""
        return {}

    def keys_per_query(self, length: float) -> float:
        """Return the mean number of keys that are computed for a query in a text of this length.

        The queries of the first and the last block count twice: they attend to their gathered key
        blocks like any block, and with full attention.
        """
        if length <= self.dense_length:
            return length
        return (7 + self.num_random) * self.block_size

    def flops(self, attended: float) -> float:
        """See `Attention.flops`; only the keys that are computed count."""
        return super().flops(self.keys_per_query(attended))

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """See `Attention.activation_numel`.

        Long texts also keep the gathered key and value blocks, and the queries and outputs that
        are merged.
        """
        gathered = 0 if length <= self.dense_length else 2 * (6 + self.num_random)
        kept = super().activation_numel(
            int(self.keys_per_query(length)), item=item, on_cpu=on_cpu, dropout=dropout
        )
        return kept + gathered * self.num_heads * self.head_dim

    def build(self, d_model: int, **options: Any) -> BlockSparseAttentionModule:
        """See `Mixer.build`."""
        return BlockSparseAttentionModule(self, d_model, **options)


@dataclass(frozen=True, kw_only=True)
class KeyBlocks(Prepared):
    """The key blocks of every query block, and the tokens with full attention.

    `mask` is the mask between the queries of a block and its gathered keys, for N * M heads.

    Args:
        key_blocks: int64 [1 or B, N, M, C], the key blocks of every query block.
        full_columns: int64 [1 or B, 1, G, 1], columns of tokens that may have full attention.
        has_full: bool [1 or B, 1, G, 1], whether the token in this column has full attention.
        full_mask: the mask between these tokens and all keys.
    """

    key_blocks: Tensor
    full_columns: Tensor
    has_full: Tensor
    full_mask: Mask

    def split_queries(self, x: Tensor) -> Tensor:
        """Split queries into blocks that act as heads: [B, N, L, H] -> [B, N * M, S, H]."""
        return x.unflatten(2, (self.key_blocks.shape[2], -1)).flatten(1, 2)

    def gather_key_blocks(self, x: Tensor) -> Tensor:
        """Gather each query block's keys or values: [B, K, L, H] -> [B, N * M, C * S, H]."""
        (rows, kv_heads), (heads, num_blocks) = x.shape[:2], self.key_blocks.shape[1:3]
        blocks = x.unflatten(2, (num_blocks, -1)).flatten(0, 2).flatten(1)  # [B * K * M, S * H]
        of_head = torch.arange(rows * kv_heads, device=x.device).view(rows, kv_heads, 1, 1)
        of_head = of_head.repeat_interleave(heads // kv_heads, 1)  # [B, N, 1, 1]
        gathered = blocks.index_select(0, (of_head * num_blocks + self.key_blocks).flatten())
        return gathered.view(rows, heads * num_blocks, -1, x.shape[3])

    def gather_full(self, x: Tensor) -> Tensor:
        """Gather the vectors in `full_columns`: [B, N, L, H] -> [B, N, G, H]."""
        return x.gather(2, self.full_columns.expand(*x.shape[:2], -1, x.shape[3]))

    def scatter_full(self, sparse: Tensor, full: Tensor) -> Tensor:
        """Replace `sparse` [B, N, L, H] by `full` [B, N, G, H] where attention is full."""
        rows = torch.where(self.has_full, full.to(sparse.dtype), self.gather_full(sparse))
        return sparse.scatter(2, self.full_columns.expand_as(rows), rows)


class BlockSparseAttentionModule(AttentionModule):
    """Attention of query blocks to gathered key blocks, in one batched matmul.

    The attention of a token depends only on its own text: the last block is the block of the text's
    last token, and a text of at most `dense_length` tokens has full attention in any batch. In
    `transformers` both follow from the longest text of a batch. The random blocks equal those of
    `transformers` for the same seed, except in rows of 1024, 3072 and 4096 tokens, for which
    `transformers` draws from more blocks. Unlike in `transformers`, attention weights have dropout
    in long texts.

    Source: Zaheer et al. 2020, section 2 and appendix D.
    """

    part: BlockSparseAttention

    def prepare_for(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> Prepared:
        """See `AttentionModule.prepare_for`. Raises SpecError if the mask is not only padding."""
        self.check_mask_conditions(sequence, supported={"padding"})
        columns = keys.columns
        if columns.shape[1] <= self.part.dense_length:
            return super().prepare_for(sequence, keys, table)
        is_token = torch.ones_like(columns) if keys.is_token is None else keys.is_token
        missing = -columns.shape[1] % self.part.block_size
        return self._build_blocks(F.pad(is_token, (0, missing)).bool())

    def _build_blocks(self, is_token: Tensor) -> KeyBlocks:
        """Return the key blocks and masks of rows with padding mask `is_token` [1 or B, L]."""
        part, size, device = self.part, self.part.block_size, is_token.device
        rows, num_blocks = len(is_token), is_token.shape[1] // size
        columns = torch.arange(is_token.shape[1], device=device)
        end = ((columns + 1) * is_token).amax(1, keepdim=True)  # [B, 1]
        last = (end - 1).clamp(min=0) // size
        key_blocks, is_repeated = self._select_key_blocks(rows, num_blocks, last)
        row = torch.arange(rows, device=device)[:, None, None, None]
        attends = is_token.unflatten(1, (num_blocks, size))[row, key_blocks]  # [B, N, M, C, S]
        attends[:, :, :, 2:5] &= ~is_repeated[..., None]
        attends = attends.flatten(3).flatten(1, 2)[:, :, None]  # [B, N * M, 1, C * S]
        in_end_blocks = (columns < size) | (columns // size == last)
        has_full = (in_end_blocks | (end <= part.dense_length)) & is_token
        most = max(1, int(has_full.sum(1).max()))
        full = has_full.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        of_length = partial(SequenceInfo.of_length, device=device)
        return KeyBlocks(
            key_blocks=key_blocks,
            mask=Mask(of_length(size, custom=attends), of_length(attends.shape[-1])),
            full_columns=full[:, None, :, None],
            has_full=has_full.gather(1, full)[:, None, :, None],
            full_mask=Mask(of_length(most), of_length(len(columns), is_token=is_token)),
        )

    def _select_key_blocks(self, rows: int, num_blocks: int, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return the key blocks [rows, N, M, C] of M query blocks, and which neighbours repeat.

        The C blocks are the first block, the last block [rows, 1], three neighbours and the random
        blocks. A neighbour that is the first or the last block is repeated: bool [rows, 1, M, 3].
        """
        part, device = self.part, last.device
        neighbours = torch.arange(num_blocks, device=device)[:, None] + torch.arange(
            -1, 2, device=device
        )
        random = torch.zeros(part.num_heads, num_blocks, part.num_random, dtype=torch.int64)
        if self.training:
            random = random_blocks(part.seed, part.num_heads, num_blocks, part.num_random)
        first, last = neighbours.new_zeros(1, 1), last[..., None, None]
        kinds = first, last, neighbours.clamp(0, num_blocks - 1), random.to(device)
        blocks = [kind.expand(rows, part.num_heads, num_blocks, -1) for kind in kinds]
        return torch.cat(blocks, -1), (neighbours <= 0) | (neighbours >= last)

    def head_outputs(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> Tensor:
        """See `AttentionModule.head_outputs`."""
        if not isinstance(prepared, KeyBlocks):
            return super().head_outputs(x, sequence, state, prepared)
        return self._attend(*self._query_key_value(x, sequence, state, prepared), prepared)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, blocks: KeyBlocks) -> Tensor:
        """Compute the head outputs: query [B, N, T, H], key, value [B, K, T, H] -> [B, N, T, H].

        The width of values and outputs may differ from H.
        """
        length = query.shape[2]
        missing = -length % self.part.block_size
        query, key, value = (F.pad(each, (0, 0, 0, missing)) for each in (query, key, value))
        gathered = blocks.gather_key_blocks(key), blocks.gather_key_blocks(value)
        sparse = self.attend_heads(blocks.split_queries(query), *gathered, blocks.mask)
        sparse = sparse.unflatten(1, (query.shape[1], -1)).flatten(2, 3)
        full = self.attend_heads(blocks.gather_full(query), key, value, blocks.full_mask)
        return blocks.scatter_full(sparse, full)[:, :, :length]

    def probabilities(
        self, x: Tensor, sequence: SequenceInfo, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """See `AttentionModule.probabilities`; computed with the identity matrix as values."""
        prepared = prepared or self.prepare(sequence, state)
        if not isinstance(prepared, KeyBlocks):
            return super().probabilities(x, sequence, state, prepared)
        query, key, _ = self._query_key_value(x, sequence, state, prepared)
        units = torch.eye(key.shape[2], device=key.device).expand(*key.shape[:2], -1, -1)
        return self._attend(query.float(), key.float(), units.float(), prepared)


@lru_cache(maxsize=256)
def random_blocks(seed: int, num_heads: int, num_blocks: int, num_random: int) -> Tensor:
    """Return the random key blocks of every head and query block: int64 [N, M, R].

    Random blocks are drawn from the first 5 + 2R blocks, where R is the last argument. The first
    and the last of these blocks, the query block and its neighbours are excluded. The second block
    and the second to last block also exclude each other. In long texts all random blocks are near
    the beginning, as in the authors' code.
    """
    generator, choices = np.random.RandomState(seed), 5 + 2 * num_random
    blocks = torch.zeros(num_heads, num_blocks, num_random, dtype=torch.int64)
    for block in range(1, num_blocks):
        others = {0, block - 1, block, block + 1, choices - 1}
        others |= {choices - 2} if block == 1 else {1} if block == choices - 2 else set()
        for head in range(num_heads):
            drawn = [int(each) for each in generator.permutation(choices) if each not in others]
            blocks[head, block] = torch.tensor(drawn[:num_random])
    return blocks
