"""Multi-head attention, for self-attention and cross-attention of every family.

Shape letters: B batch, T query positions, S key positions, D width, N heads, K key-value heads,
H head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.kv_cache import LayerCacheView
from trivium.nn.mask import Mask
from trivium.nn.positions import Rotation

# Attention scores that the layers of a stack together may keep for backward in eager attention:
# 4 GiB of float32. Beyond it memory matters more than time.
MAX_EAGER_SCORES = 2**30
# Entries [T, S] of a mask that are made at a time where nothing is kept for backward.
_MAX_MASK = 2**22
FULL = spec.Full()


class MultiHeadAttention(nn.Module):
    """MultiHead(x) = Concat(softmax(Q_n K_n^T * scale) V_n) W_O.

    Source: Vaswani et al. 2017, section 3.2; with fewer key-value heads than heads it is
    grouped-query attention (Ainslie et al. 2023). Scale is H^-0.5 unless the spec has another.

    Args:
        attention: heads, biases, pattern, scale.
        width: D.
        dropout: of attention weights, while training.
        num_layers: of the stack; all of them together keep at most `MAX_EAGER_SCORES`.
    """

    def __init__(
        self, attention: spec.Attention, width: int, dropout: float = 0.0, num_layers: int = 1
    ) -> None:
        super().__init__()
        self.head_dim, self.pattern = attention.head_dim, attention.pattern
        self.positions = attention.positions
        self.scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
        self.dropout, self.max_scores = dropout, MAX_EAGER_SCORES // num_layers
        queries = attention.num_heads * attention.head_dim
        keys = attention.kv_heads * attention.head_dim
        self.query = nn.Linear(width, queries, bias=attention.bias)
        self.key = nn.Linear(width, keys, bias=attention.bias)
        self.value = nn.Linear(width, keys, bias=attention.bias)
        self.output = nn.Linear(queries, width, bias=attention.has_output_bias)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        *,
        rope: Rotation | None = None,
        position_bias: Tensor | None = None,
        key_value: tuple[Tensor, Tensor] | None = None,
        cache: LayerCacheView | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D].

        Args:
            x: queries, and keys and values unless `key_value` has them.
            mask: which keys each query attends to; None: all.
            rope: rotation of queries and keys by their position; None with rotary positions: by
                the column of `x`. A stack computes it once for all its layers.
            position_bias: added to scores, [1 or B, N, T, S].
            key_value: keys and values [B, K, S, H] of an encoder's output (cross-attention), as
                `project` computes them.
            cache: earlier keys and values of the same text, extended in place.

        Raises:
            SpecError: relative positions whose bias is missing.
        """
        mask = mask or Mask()
        query, key, value = self._query_key_value(x, mask, rope, position_bias, key_value)
        if cache is not None and key_value is None:
            key, value = cache.append(key, value)
        mixed = attend(
            query.to(key.dtype),  # a cache may be more precise than the model
            key,
            value,
            mask,
            self.pattern,
            scale=self.scale,
            position_bias=position_bias,
            dropout=self.dropout if self.training else 0.0,
            max_scores=self.max_scores,
        )
        return self.output(mixed.to(x.dtype).transpose(1, 2).flatten(2))

    def probabilities(
        self,
        x: Tensor,
        mask: Mask,
        *,
        rope: Rotation | None = None,
        position_bias: Tensor | None = None,
        key_value: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """What `forward` weighs values with, in float32: [B, T, D] -> [B, N, T, S]."""
        query, key, _ = self._query_key_value(x, mask, rope, position_bias, key_value)
        allowed = mask.allowed(self.pattern, query.shape[2], key.shape[2], x.device)
        weights = softmax_scores(query.float(), key.float(), allowed, self.scale, position_bias)
        return weights if allowed is None else weights * allowed.any(-1, keepdim=True)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of [B, S, D]: two tensors [B, K, S, H]."""
        return self._heads(self.key(x)), self._heads(self.value(x))

    def _query_key_value(
        self,
        x: Tensor,
        mask: Mask,
        rope: Rotation | None,
        position_bias: Tensor | None,
        key_value: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, N, T, H] and keys, and values [B, K, S, H]."""
        positions = self.positions
        if rope is None and isinstance(positions, spec.Rotary):
            columns = mask.query_positions(x.shape[1], x.device)
            rope = Rotation(positions, self.head_dim, columns)
        if position_bias is None and isinstance(positions, spec.RelativeBias | spec.ALiBi):
            raise SpecError(
                f'attention with positions of kind "{positions.kind}" needs position_bias: compute '
                "it once for all layers with nn.RelativePositionBias or nn.LinearBias."
            )
        query = self._heads(self.query(x))
        key, value = self.project(x) if key_value is None else key_value
        if rope is not None:
            query, key = rope(query), rope(key)
        return query, key, value

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, N, T, H]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    pattern: spec.Pattern = FULL,
    *,
    scale: float | None = None,
    position_bias: Tensor | None = None,
    dropout: float = 0.0,
    max_scores: int = MAX_EAGER_SCORES,
) -> Tensor:
    """softmax(Q K^T * scale + bias + mask) V by the fastest way the device has.

    A query that may attend to nothing gets 0. `scale` is H^-0.5 unless set.

    Shape: query [B, N, T, H]; key, value [B, K, S, H] with N a multiple of K; position_bias
    [1 or B, N, T, S] -> [B, N, T, H].
    """
    heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    scale = float(query.shape[3] ** -0.5) if scale is None else scale
    scores = query.shape[:3].numel() * keys
    if query.device.type == "cpu" and torch.is_grad_enabled() and scores <= max_scores:
        # The backward pass of eager attention is 4 times faster than the kernel's.
        allowed = mask.allowed(pattern, queries, keys, query.device)
        weights = softmax_scores(query, key, allowed, scale, position_bias)
        mixed = F.dropout(weights, dropout) @ _repeat_kv(value, heads)
        return mixed if allowed is None else mixed * allowed.any(-1, keepdim=True)
    is_causal = position_bias is None and mask.is_plain_causal(pattern, queries)
    rows = max(1, _MAX_MASK // keys)
    if rows < queries and not is_causal and not torch.is_grad_enabled():
        parts = [
            attend(
                query[:, :, start : start + rows],
                key,
                value,
                mask.of_queries(start, start + rows),
                pattern,
                scale=scale,
                position_bias=None
                if position_bias is None
                else position_bias[:, :, start : start + rows],
            )
            for start in range(0, queries, rows)
        ]
        return torch.cat(parts, 2)
    bias = None if is_causal else mask.allowed(pattern, queries, keys, query.device)
    if position_bias is not None:
        position_bias = position_bias.to(query.dtype)
        if bias is not None:
            position_bias = position_bias.masked_fill(~bias, -torch.inf)
        bias = position_bias
    groups = heads // key.shape[1]
    fold_groups = groups > 1 and queries == 1
    if fold_groups:  # heads with the same keys become queries of one head: keys are read once
        query = query.view(len(query), -1, groups, query.shape[3])
        if bias is not None and bias.shape[1] > 1:
            bias = bias.view(len(bias), -1, groups, keys)
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=bias,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=groups > 1 and not fold_groups,
    )
    return mixed.view(len(mixed), heads, 1, -1) if fold_groups else mixed


def softmax_scores(
    query: Tensor,
    key: Tensor,
    allowed: Tensor | None,
    scale: float,
    position_bias: Tensor | None = None,
) -> Tensor:
    """softmax(Q K^T * scale + bias), 0 where not allowed: [B, N, T, S].

    A query that may attend to nothing gets 1 / S everywhere, which its caller makes 0.

    Shape: query [B, N, T, H]; key [B, K, S, H]; allowed bool, position_bias [1 or B, N, T, S].
    """
    scores = (query * scale) @ _repeat_kv(key, query.shape[1]).transpose(-1, -2)
    if position_bias is not None:
        scores = scores + position_bias.to(scores.dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def _repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Keys or values repeated for the heads that share them: [B, K, S, H] -> [B, N, S, H]."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)
