"""FlexAttention: attention masks and position biases inside one compiled kernel.

Unlike `F.scaled_dot_product_attention`, the kernel skips blocks of keys that are masked for all of
its queries, and keeps no scores for the backward pass, whatever the mask, bias and soft cap are.
PyTorch supports its backward pass only on a GPU, and it is fast only inside a compiled block.

Source: Dong et al. 2024 (Flex Attention: a programming model for generating optimized attention
kernels).

Shape letters: B batch, T query positions, S key positions, N heads, K key-value heads, H head_dim,
V value dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from trivium.nn.activations import apply_soft_cap
from trivium.nn.mask import Mask, MaskPart, attention_mask

MIN_HEAD_DIM = 16
"""The minimum width of heads that PyTorch's kernel supports."""


class FlexMask(Mask):
    """The attention mask of a forward pass for FlexAttention, made once for equal layers.

    The arguments are those of `Mask`, and so are the parts if it is iterated over.
    `position_bias` is the position bias [1 or B, N, T, S] without the mask, or None. `block_mask`
    tells which blocks of scores the kernel computes; None: all.
    """

    position_bias: Tensor | None = None
    block_mask: BlockMask | None = None

    def _prepare_parts(self) -> list[MaskPart] | None:
        """Compute the position bias and the block mask. Returns None: the parts are not needed."""
        if self.bias is not None:
            # A copy: FlexAttention in a compiled block computes no gradient of a view.
            bias = self.bias(self.queries, self.keys)
            self.position_bias = bias.clone(memory_format=torch.contiguous_format)
        mask = attention_mask(self.queries, self.keys, self.pattern, self.always)
        if mask is not None:
            self.block_mask = _make_block_mask(mask, self.queries.columns.shape[1])
        return None


def flex_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: FlexMask,
    *,
    scale: float,
    soft_cap: float | None = None,
) -> Tensor:
    """Compute `attend` by FlexAttention, without `scores` and dropout: [B, N, T, V].

    Query [B, N, T, H], key [B, K, S, H] and value [B, K, S, V] have the same dtype. The other
    arguments are those of `attend`.
    """
    bias = mask.position_bias
    by_row = 0 if bias is None else int(len(bias) > 1)

    def modify_score(score: Tensor, b: Tensor, n: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Return the score of one query and key with soft cap and bias."""
        if soft_cap is not None:
            score = apply_soft_cap(score, soft_cap)
        return score if bias is None else score + bias[b * by_row, n, t, s]

    return flex_attention(
        query,
        key,
        value,
        score_mod=modify_score,
        block_mask=mask.block_mask,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _make_block_mask(mask: Tensor, num_queries: int) -> BlockMask:
    """Return the block mask of an attention mask, bool [1 or B, 1 or N, 1 or T, S]."""
    mask = mask.expand(-1, -1, num_queries, -1)
    rows, heads, _, num_keys = mask.shape
    by_row, by_head = int(rows > 1), int(heads > 1)

    def allows(b: Tensor, n: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Return whether one query attends to one key."""
        return mask[b * by_row, n * by_head, t, s]

    return create_block_mask(allows, rows, heads, num_queries, num_keys, device=mask.device)
