"""Scaled dot-product attention, computed by the fastest kernel that supports the mask.

Shape letters: B batch, T query positions, S key positions, N heads, K key-value heads, H head_dim,
V value dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from trivium.nn.activations import apply_soft_cap
from trivium.nn.flex import FlexMask, flex_attend
from trivium.nn.mask import Mask, MaskPart, masked_score

# The largest number of attention scores that all layers of a stack together keep for backward in
# eager attention: 4 GiB in float32. Above this limit, memory matters more than time.
MAX_EAGER_SCORES = 2**30


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    *,
    scale: float | None = None,
    scores: Tensor | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    max_scores: int = MAX_EAGER_SCORES,
) -> Tensor:
    """Compute softmax(Q K^T * scale + scores + mask) V with the fastest available kernel.

    The output is 0 for a query whose keys are all masked.

    Args:
        query: [B, N, T, H].
        key: [B, K, S, H], where N is a multiple of K (grouped-query attention).
        value: [B, K, S, V].
        mask: the attention mask, which includes the position bias. A `FlexMask` is computed by
            FlexAttention, without `scores` and dropout.
        scale: the factor of Q K^T; None: H^-0.5.
        scores: [1 or B, N, T, S], a term that is added to the scores; None: 0.
        soft_cap: c, with which s = Q K^T * scale becomes c tanh(s / c). No PyTorch kernel supports
            it, so all scores of a mask part are in memory at once.
        sinks: [N], the score of the attention sink of each head: one more key, whose value is 0.
            All scores of a mask part are in memory at once.
        dropout: the dropout rate of the attention probabilities.
        max_scores: training on a CPU uses eager attention if it keeps at most this number of scores
            for the backward pass.

    Returns:
        The attention output [B, N, T, V].
    """
    scale = float(query.shape[3] ** -0.5) if scale is None else scale
    if isinstance(mask, FlexMask):
        return flex_attend(query, key, value, mask, scale=scale, soft_cap=soft_cap)
    whole, mixed = None, []
    if len(mask.slices) > 1 and not torch.is_grad_enabled():
        # Separate outputs of the parts would fragment the memory between large temporary tensors.
        whole = query.new_empty(*query.shape[:3], value.shape[3])
    for part in mask:
        some, near = part.queries, part.keys
        q, k, v = query[:, :, some], key[:, :, near], value[:, :, near]
        bias = part.bias if scores is None else _add_bias_and_mask(part, scores[..., some, near])
        # On a CPU, the backward pass of eager attention is 4 times faster than that of the kernel.
        small = math.prod(q.shape[:3]) * k.shape[2] * len(mask.slices) <= max_scores
        faster = q.device.type == "cpu" and torch.is_grad_enabled() and small
        if faster or soft_cap is not None or sinks is not None:
            weights = _eager_probabilities(q, k, part, scale, bias, soft_cap, sinks)
            y = F.dropout(weights, dropout) @ _repeat_kv(v, q.shape[1])
        else:
            y = _call_sdpa(q, k, v, part, scale, bias, dropout)
        y = y if part.has_keys is None else y.masked_fill(~part.has_keys, 0.0)
        if whole is None:
            mixed.append(y)
        else:
            whole[:, :, some] = y
    if whole is not None:
        return whole
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, 2)


def attention_probabilities(
    query: Tensor,
    key: Tensor,
    mask: Mask,
    scale: float,
    scores: Tensor | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the attention probabilities of `attend`, [B, N, T, S].

    The probabilities are 0 for a query whose keys are all masked. With sinks, their sum is less
    than 1.
    """
    whole = query.new_zeros(*query.shape[:3], key.shape[2])
    for part in mask:
        some, near = part.queries, part.keys
        bias = part.bias if scores is None else _add_bias_and_mask(part, scores[..., some, near])
        weights = _eager_probabilities(
            query[:, :, some], key[:, :, near], part, scale, bias, soft_cap, sinks
        )
        if part.has_keys is not None:
            weights = weights.masked_fill(~part.has_keys, 0.0)
        whole[:, :, some, near] = weights
    return whole


def _eager_probabilities(
    query: Tensor,
    key: Tensor,
    part: MaskPart,
    scale: float,
    bias: Tensor | None,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Return softmax(soft_cap(Q K^T * scale) + bias), [B, N, T, S], with masked keys at 0.

    With sinks [N], the softmax also runs over the sink of the head, whose probability is left out.

    If all keys of a query are masked, each key gets the probability 1 / S, which the caller has to
    replace with 0.

    Shape: query [B, N, T, H]; key [B, K, S, H]; bias [1 or B, N, T, S]. The bias includes the
    attention mask; if it is None, the attention mask of `part` is applied.
    """
    scores = (query * scale) @ _repeat_kv(key, query.shape[1]).transpose(-1, -2)
    if soft_cap is not None:
        scores = apply_soft_cap(scores, soft_cap)
    if bias is not None:
        scores = scores + _cast_bias(bias, scores.dtype)
    else:
        scores = _apply_mask(scores, part)
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]


def _call_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    part: MaskPart,
    scale: float,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """Return the attention output [B, N, T, V] of the queries and keys of a mask part.

    Calls `F.scaled_dot_product_attention`. The bias includes the attention mask; if it is None, the
    attention mask of `part` is used.
    """
    heads, queries = query.shape[1], query.shape[2]
    is_causal = part.is_plain_causal and bias is None
    mask = part.attention_mask if bias is None else _cast_bias(bias, query.dtype)
    mask = None if is_causal else mask
    groups = heads // key.shape[1]
    fold_groups = groups > 1 and queries == 1
    if fold_groups:  # query heads that share keys become queries of one head, to read keys once
        query = query.view(len(query), -1, groups, query.shape[3])
        if mask is not None and mask.shape[1] > 1:
            mask = mask.view(len(mask), -1, groups, mask.shape[3])
    elif groups > 1 and mask is not None and query.device.type == "cuda":
        # GPU kernels that support both a mask and grouped heads keep all scores, so keys are
        # repeated instead.
        key, value = _repeat_kv(key, heads), _repeat_kv(value, heads)
    if is_causal and key.shape[2] > queries:  # the queries are the last of the keys
        mask, is_causal = causal_lower_right(queries, key.shape[2]), False
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed.reshape(len(mixed), heads, 1, -1) if fold_groups else mixed


def _cast_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast a bias to another dtype. In float16, values that would become -inf are clamped."""
    return (bias.clamp(min=masked_score(dtype)) if dtype == torch.float16 else bias).to(dtype)


def _add_bias_and_mask(part: MaskPart, scores: Tensor) -> Tensor:
    """Return `scores` plus the bias of a mask part, with masked entries set to the lowest score."""
    return _apply_mask(scores if part.bias is None else scores + part.bias, part)


def _apply_mask(scores: Tensor, part: MaskPart) -> Tensor:
    """Return scores [B, N, T, S] with masked entries set to `masked_score`."""
    allowed = part.attention_mask
    if allowed is None and part.is_plain_causal:
        queries, keys = scores.shape[-2:]
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=scores.device)
        allowed = allowed.tril(keys - queries)  # the queries are the last of the keys
    return scores if allowed is None else scores.masked_fill(~allowed, masked_score(scores.dtype))


def _repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Repeat keys or values for the query heads that share them: [B, K, S, H] -> [B, N, S, H]."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)
