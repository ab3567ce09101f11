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
    random blocks. The first and the last block attend to all tokens. Sequences of at most
    `dense_length` tokens have full attention.

    In training, every head has its own random blocks. They are sampled with `seed` and stay the
    same in every step. Layers with different seeds have different random blocks. In evaluation,
    every random block is replaced by the first block, as in `transformers`; the authors' code keeps
    the random blocks.

    Source: Zaheer et al. 2020, section 2. The global tokens are part of the sequence (ITC).
    """

    supports_decoder: ClassVar[bool] = False
    supports_packing: ClassVar[bool] = False
    kind: Literal["block-sparse-attention"] = "block-sparse-attention"  # type: ignore[assignment]
    block_size: Count
    num_random: Annotated[int, Field(ge=0, lt=2**15)]
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    def check(self) -> None:
        """Raise SpecError for an attention pattern or a position encoding inside attention."""
        super().check()
        if self.positions or self.pattern:
            raise SpecError(
                f"{self.kind} has a pattern of its own and no positions: leave pattern and "
                "positions out, and give the model absolute ones (embedding.positions)."
            )

    @property
    def dense_length(self) -> int:
        """The maximum length, in tokens, of sequences that get full attention.

        It is the length of 5 + 2 `num_random` blocks.
        """
        return (5 + 2 * self.num_random) * self.block_size

    @property
    def sharded_fields(self) -> dict[str, int]:
        """Empty: tensor parallelism is not supported because all heads share one random generator.

        See `Mixer.sharded_fields`.
        """
        return {}

    def mean_keys_per_query(self, length: float) -> float:
        """Return the average number of attention scores computed per query.

        The queries of the first and the last block count twice. They attend once to a few key
        blocks, like all queries, and once to all keys.

        Args:
            length: the number of tokens in the sequence.
        """
        if length <= self.dense_length:
            return length
        return (7 + self.num_random) * self.block_size

    def flops(self, attended: float) -> float:
        """Return the training FLOPs per token, forward and backward, of scores and weighted values.

        Only the scores that are computed count (`mean_keys_per_query`). See `Attention.flops`.
        """
        return super().flops(self.mean_keys_per_query(attended))

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        Compared with `Attention.activation_numel`, a sequence longer than `dense_length` has fewer
        scores. It also keeps the gathered key and value blocks, and copies of queries and outputs.
        """
        gathered = 0 if length <= self.dense_length else 2 * (6 + self.num_random)
        kept = super().activation_numel(
            int(self.mean_keys_per_query(length)), item=item, on_cpu=on_cpu, dropout=dropout
        )
        return kept + gathered * self.num_heads * self.head_dim

    def build(self, d_model: int, **options: Any) -> BlockSparseAttentionModule:
        """See `Mixer.build`."""
        return BlockSparseAttentionModule(self, d_model, **options)


@dataclass(frozen=True, kw_only=True)
class KeyBlocks(Prepared):
    """The key blocks that each query block attends to, and the tokens with full attention.

    The inherited field `mask` is the attention mask between the queries of a block and its
    gathered keys. In this mask, every block of every head counts as a head (N * M heads).

    Args:
        key_blocks: int64 [1 or B, N, M, C], the indices of the key blocks of each query block.
        full_columns: int64 [1 or B, 1, G, 1], the indices in the row of tokens with full attention.
            Rows with fewer than G such tokens are filled up with other tokens.
        has_full: bool [1 or B, 1, G, 1], True where the token in `full_columns` has full attention.
        full_mask: the attention mask between the tokens in `full_columns` and all keys.
    """

    key_blocks: Tensor
    full_columns: Tensor
    has_full: Tensor
    full_mask: Mask

    def split_query_blocks(self, x: Tensor) -> Tensor:
        """Split queries into blocks, which attention treats as heads.

        Shape: [B, N, L, H] -> [B, N * M, S, H], where L = M * S.
        """
        return x.unflatten(2, (self.key_blocks.shape[2], -1)).flatten(1, 2)

    def gather_key_blocks(self, x: Tensor) -> Tensor:
        """Gather the keys or values that each query block attends to.

        Shape: [B, K, L, H] -> [B, N * M, C * S, H]: C blocks of S tokens for each of N * M query
        blocks.
        """
        (rows, kv_heads), (heads, num_blocks) = x.shape[:2], self.key_blocks.shape[1:3]
        blocks = x.unflatten(2, (num_blocks, -1)).flatten(0, 2).flatten(1)  # [B * K * M, S * H]
        of_head = torch.arange(rows * kv_heads, device=x.device).view(rows, kv_heads, 1, 1)
        of_head = of_head.repeat_interleave(heads // kv_heads, 1)  # [B, N, 1, 1]
        gathered = blocks.index_select(0, (of_head * num_blocks + self.key_blocks).flatten())
        return gathered.view(rows, heads * num_blocks, -1, x.shape[3])

    def gather_full_tokens(self, x: Tensor) -> Tensor:
        """Gather the vectors of the tokens in `full_columns`: [B, N, L, H] -> [B, N, G, H]."""
        return x.gather(2, self.full_columns.expand(*x.shape[:2], -1, x.shape[3]))

    def scatter_full_tokens(self, sparse: Tensor, full: Tensor) -> Tensor:
        """Return the block-sparse output with the rows of tokens with full attention replaced.

        Args:
            sparse: [B, N, L, H], the output of block-sparse attention for all tokens.
            full: [B, N, G, H], the output of full attention for the tokens in `full_columns`.
        """
        rows = torch.where(self.has_full, full.to(sparse.dtype), self.gather_full_tokens(sparse))
        return sparse.scatter(2, self.full_columns.expand_as(rows), rows)


class BlockSparseAttentionModule(AttentionModule):
    """Attention of query blocks to gathered key blocks, in one batched matmul.

    The output for a sequence does not depend on the other sequences in the batch. The last block is
    the block of the sequence's own last token, and a sequence of at most `dense_length` tokens
    always has full attention. In `transformers` both depend on the longest sequence of the batch.
    The random blocks equal those of `transformers` for the same seed, except in rows of 1024, 3072
    and 4096 tokens, for which `transformers` samples from more blocks. Unlike in `transformers`,
    attention weights have dropout in long sequences, too.

    Source: Zaheer et al. 2020, section 2 and appendix D.
    """

    part: BlockSparseAttention

    def prepare_for_keys(
        self, sequence: SequenceInfo, keys: SequenceInfo, table: nn.Module | None
    ) -> Prepared:
        """Return the key blocks and masks (`KeyBlocks`), or the plain mask for full attention.

        Rows of at most `dense_length` tokens have full attention. See
        `AttentionModule.prepare_for_keys`. Raises SpecError for mask conditions other than padding.
        """
        self.check_mask_conditions(sequence, supported={"padding"})
        columns = keys.columns
        if columns.shape[1] <= self.part.dense_length:
            return super().prepare_for_keys(sequence, keys, table)
        is_token = torch.ones_like(columns) if keys.is_token is None else keys.is_token
        missing = -columns.shape[1] % self.part.block_size
        return self._build_key_blocks(F.pad(is_token, (0, missing)).bool())

    def _build_key_blocks(self, is_token: Tensor) -> KeyBlocks:
        """Return the key blocks of a batch, their masks, and the tokens with full attention.

        Args:
            is_token: bool [1 or B, L], True for tokens, False for padding.
        """
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
        """Return the indices of the key blocks of each query block, and which are duplicates.

        The C key blocks of a query block are the first block, the last block, three neighbouring
        blocks (the query block is the middle one) and the random blocks.

        Args:
            rows: the number of rows in the batch.
            num_blocks: M, the number of blocks in a row.
            last: int64 [rows, 1], the index of the last block of each row.

        Returns:
            The indices [rows, N, M, C], and a bool tensor [rows, 1, M, 3]. It is True where one of
            the three neighbouring blocks is the first or the last block, which are already there.
        """
        part, device = self.part, last.device
        neighbours = torch.arange(num_blocks, device=device)[:, None] + torch.arange(
            -1, 2, device=device
        )
        shape = part.num_heads, num_blocks, part.num_random
        random = neighbours.new_zeros(shape)
        if self.training:
            random = sample_random_blocks(part.seed, *shape, device)
        first, last = neighbours.new_zeros(1, 1), last[..., None, None]
        kinds = first, last, neighbours.clamp(0, num_blocks - 1), random
        blocks = [kind.expand(rows, part.num_heads, num_blocks, -1) for kind in kinds]
        return torch.cat(blocks, -1), (neighbours <= 0) | (neighbours >= last)

    def head_outputs(
        self, x: Tensor, sequence: SequenceInfo, state: Any, prepared: Prepared
    ) -> Tensor:
        """Return the head outputs of block-sparse attention: [B, T, D] -> [B, N, T, H].

        If `prepared` has no key blocks, attention is full. See `AttentionModule.head_outputs`.
        """
        if not isinstance(prepared, KeyBlocks):
            return super().head_outputs(x, sequence, state, prepared)
        return self._attend(*self._compute_qkv(x, sequence, state, prepared), prepared)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, blocks: KeyBlocks) -> Tensor:
        """Return the head outputs of block-sparse attention for given queries, keys and values.

        Shape: query [B, N, T, H], key [B, K, T, H], value [B, K, T, V] -> [B, N, T, V].
        """
        length = query.shape[2]
        missing = -length % self.part.block_size
        query, key, value = (F.pad(each, (0, 0, 0, missing)) for each in (query, key, value))
        gathered = blocks.gather_key_blocks(key), blocks.gather_key_blocks(value)
        sparse = self.attend_heads(blocks.split_query_blocks(query), *gathered, blocks.mask)
        sparse = sparse.unflatten(1, (query.shape[1], -1)).flatten(2, 3)
        full = self.attend_heads(blocks.gather_full_tokens(query), key, value, blocks.full_mask)
        return blocks.scatter_full_tokens(sparse, full)[:, :, :length]

    def probabilities(
        self, x: Tensor, sequence: SequenceInfo, state: Any = None, prepared: Prepared | None = None
    ) -> Tensor:
        """Return the attention probabilities, 0 for keys that a query does not attend to.

        Shape: [B, T, D] -> [B, N, T, T]. The probabilities are the attention output with the
        identity matrix as values. See `AttentionModule.probabilities`.
        """
        prepared = prepared or self.prepare(sequence, state)
        if not isinstance(prepared, KeyBlocks):
            return super().probabilities(x, sequence, state, prepared)
        query, key, _ = self._compute_qkv(x, sequence, state, prepared)
        units = torch.eye(key.shape[2], device=key.device).expand(*key.shape[:2], -1, -1)
        return self._attend(query.float(), key.float(), units.float(), prepared)


@lru_cache(maxsize=256)
def sample_random_blocks(
    seed: int, num_heads: int, num_blocks: int, num_random: int, device: torch.device
) -> Tensor:
    """Return the indices of the random key blocks of each query block: int64 [N, M, R].

    They are sampled and copied to the device once.

    They are from the first 5 + 2 R blocks, so in long sequences all random blocks are near
    the beginning, as in the authors' code. The first and the last of the 5 + 2 R blocks, the query
    block and its neighbours are excluded. The second and the second to last of the 5 + 2 R blocks
    also do not get each other.

    Args:
        seed: the seed of NumPy's random generator.
        num_heads: N.
        num_blocks: M, the number of blocks in a row.
        num_random: R, the number of random blocks per query block.
        device: the device of the result.
    """
    generator, choices = np.random.RandomState(seed), 5 + 2 * num_random
    blocks = np.zeros((num_heads, num_blocks, num_random), dtype=np.int64)
    for block in range(1, num_blocks):
        others = {0, block - 1, block, block + 1, choices - 1}
        others |= {choices - 2} if block == 1 else {1} if block == choices - 2 else set()
        for head in range(num_heads):
            drawn = [each for each in generator.permutation(choices) if each not in others]
            blocks[head, block] = drawn[:num_random]
    with torch.inference_mode(False):
        return torch.from_numpy(blocks).to(device)
