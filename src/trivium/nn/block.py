"""The Transformer block: attention and feed-forward inside residual connections.

Shape letters: B batch, T query positions, S positions of the encoder, M selected positions,
N heads, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.attention import MultiHeadAttention
from trivium.nn.feed_forward import build_feed_forward
from trivium.nn.kv_cache import LayerCacheView
from trivium.nn.mask import Mask
from trivium.nn.norm import build_norm
from trivium.nn.positions import Rotation
from trivium.nn.precision import to_autocast_dtype


@dataclass(frozen=True)
class Memory:
    """An encoder's output for cross-attention: [B, S, D], and the mask of its real positions.

    `mask` has no other limit than padding. Without `hidden`, a cache holds the keys and values
    (`KVCache.set_memory`).
    """

    hidden: Tensor | None
    mask: Mask


class PreNorm(nn.Module):
    """x + dropout(f(norm(x))): the residual stream is never normalised (GPT-2, LLaMA)."""

    def __init__(self, norm: spec.Norm | None, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = build_norm(norm, width), dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] -> [..., D]."""
        return x + F.dropout(sublayer(to_autocast_dtype(self.norm(x))), self.dropout, self.training)


class PostNorm(PreNorm):
    """norm(x + dropout(f(x))): as first published (Vaswani et al. 2017, BERT)."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.norm(x + F.dropout(sublayer(to_autocast_dtype(x)), self.dropout, self.training))


class Block(nn.Module):
    """Self-attention, cross-attention where it `crosses`, and feed-forward.

    Each is inside a residual connection.

    >>> import torch
    >>> from trivium import spec
    >>> stack = spec.Stack(
    ...     num_layers=1, attention=spec.Attention(num_heads=2, head_dim=4), norm=spec.LayerNorm(),
    ...     feed_forward=spec.FeedForward(d_ff=16, activation="gelu"), norm_order="pre")
    >>> Block(stack, layer=0, width=8)(torch.zeros(3, 5, 8), Mask(causal=True)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, stack: spec.Stack, layer: int, width: int, *, crosses: bool = False) -> None:
        super().__init__()
        residual = PreNorm if stack.norm_order == "pre" else PostNorm
        attention, norm, dropout = stack.attention_of(layer), stack.norm, stack.dropout
        layers = stack.num_layers * (1 + crosses)
        self.attention = MultiHeadAttention(attention, width, dropout, layers)
        unnormed = layer == 0 and not stack.first_norm
        self.attention_residual = residual(None if unnormed else norm, width, dropout)
        self.cross_attention = self.cross_residual = None
        if crosses:
            self.cross_attention = MultiHeadAttention(attention.cross, width, dropout, layers)
            self.cross_residual = residual(norm, width, dropout)
        self.feed_forward = build_feed_forward(stack.feed_forward, width)
        self.feed_forward_residual = residual(norm, width, dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        *,
        rope: Rotation | None = None,
        position_bias: Tensor | None = None,
        memory: Memory | None = None,
        cache: LayerCacheView | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D], or with `select` [M], flat positions in B * T, [M, D].

        Args:
            x: the residual stream.
            mask: which positions attend to which; None: all to all.
            rope: rotation of queries and keys; None with rotary positions: by the column of `x`.
            position_bias: added to scores, [1 or B, N, T, T].
            memory: the encoder's output, of a block with cross-attention.
            cache: keys and values of earlier tokens, and of the memory.
            select: positions whose feed-forward network is computed.
        """
        mask = mask or Mask()

        def self_attend(x: Tensor) -> Tensor:
            return self.attention(x, mask, rope=rope, position_bias=position_bias, cache=cache)

        x = self.attention_residual(x, self_attend)
        if self.cross_attention is not None and self.cross_residual is not None:
            cross_attention, memory_mask = self.cross_attention, memory.mask if memory else Mask()
            if memory is not None and memory.hidden is not None:
                key_value = cross_attention.project(memory.hidden)
            elif cache is not None and (cached := cache.memory) is not None:
                key_value = cached
            else:
                raise SpecError(
                    "cross-attention needs the encoder's output: give memory, or a cache after "
                    "cache.set_memory."
                )

            def cross_attend(x: Tensor) -> Tensor:
                return cross_attention(x, memory_mask, key_value=key_value)

            x = self.cross_residual(x, cross_attend)
        if select is not None:
            x = x.flatten(0, 1).index_select(0, select)
        return self.feed_forward_residual(x, self.feed_forward)
