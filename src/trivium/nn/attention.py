"""Multi-head attention, the only one of the house."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.nn.cache import LayerCache
from trivium.nn.mask import Mask
from trivium.nn.positions import Rotation

# Scores of one layer that the explicit product may hold: beyond it memory matters more than time.
_EXPLICIT_SCORES = 2**26


class Attention(nn.Module):
    """MultiHead(x) = Concat(softmax(Q_n K_n^T * scale) V_n) W_O.

    Source: Vaswani et al. 2017, section 3.2; with fewer key-value heads than heads it is
    grouped-query attention (Ainslie et al. 2023). Scale is H^-0.5 unless the spec has another.
    """

    def __init__(self, attention: spec.Attention, width: int, dropout: float) -> None:
        super().__init__()
        self.head_dim, self.pattern = attention.head_dim, attention.pattern
        self.scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
        self.dropout = dropout
        queries = attention.num_heads * attention.head_dim
        keys = attention.kv_heads * attention.head_dim
        self.query = nn.Linear(width, queries, bias=attention.bias)
        self.key = nn.Linear(width, keys, bias=attention.bias)
        self.value = nn.Linear(width, keys, bias=attention.bias)
        self.output = nn.Linear(queries, width, bias=attention.bias)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        *,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; with a cache, keys are those of all tokens so far."""
        query, key, value = map(self._heads, (self.query(x), self.key(x), self.value(x)))
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        if cache is not None:
            key, value = cache.extend(mask.start, key, value)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(query, key, value, mask, self.pattern, scale=self.scale, dropout=dropout)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, N, T, H]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    pattern: spec.Full | spec.Sliding,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(Q K^T * scale + mask) V by the fastest way the device has.

    Shape: query [B, N, T, H]; key, value [B, K, S, H] with N a multiple of K -> [B, N, T, H].
    """
    queries, keys = query.shape[2], key.shape[2]
    scores = query.shape[0] * query.shape[1] * queries * keys
    if query.device.type == "cpu" and torch.is_grad_enabled() and scores <= _EXPLICIT_SCORES:
        allowed = mask.allowed(pattern, queries, keys, query.device)
        return _attend_explicitly(query, key, value, allowed, scale=scale, dropout=dropout)
    is_causal = mask.is_plain_causal(pattern, queries)
    allowed = None if is_causal else mask.allowed(pattern, queries, keys, query.device)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _attend_explicitly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """The formula as it stands. On a CPU its backward pass is 4 times faster than the kernel's."""
    if query.shape[1] != key.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query * scale) @ key.transpose(-1, -2)  # [B, N, T, S]
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return F.dropout(scores.softmax(-1), dropout) @ value
