"""Attention kernels: which one computes what a mask asks for.

Shape letters: B batch, T query positions, S key positions, N heads, K key-value heads, H head_dim,
V dimensions of a value.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from trivium.nn.activations import soft_capped
from trivium.nn.mask import Mask, MaskPart, lowest

# Attention scores that the layers of a stack together may keep for backward in eager attention:
# 4 GiB of float32. Beyond it memory matters more than time.
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
    dropout: float = 0.0,
    max_scores: int = MAX_EAGER_SCORES,
) -> Tensor:
    """softmax(Q K^T * scale + scores + bias and limits of the mask) V by the fastest way there is.

    A query that may attend to nothing gets 0. `scale` is H^-0.5 unless set. With `soft_cap` c the
    product s = Q K^T * scale is c tanh(s / c), which no kernel of PyTorch's computes: all scores
    of a part of the mask are in memory at a time.

    Shape: query [B, N, T, H]; key [B, K, S, H], value [B, K, S, V] with N a multiple of K; scores
    [1 or B, N, T, S] -> [B, N, T, V].
    """
    scale = float(query.shape[3] ** -0.5) if scale is None else scale
    whole, mixed = None, []
    if len(mask.slices) > 1 and not torch.is_grad_enabled():
        # Parts that are kept would lie between large tensors, whose memory is not used again then.
        whole = query.new_empty(*query.shape[:3], value.shape[3])
    for part in mask:
        some, near = part.queries, part.keys
        q, k, v = query[:, :, some], key[:, :, near], value[:, :, near]
        bias = part.bias if scores is None else _with_scores(part, scores[..., some, near])
        # The backward pass of eager attention is 4 times faster than the kernel's.
        small = q.shape[:3].numel() * k.shape[2] * len(mask.slices) <= max_scores
        faster = q.device.type == "cpu" and torch.is_grad_enabled() and small
        if faster or soft_cap is not None:
            weights = _softmax(q, k, part, scale, bias, soft_cap)
            y = F.dropout(weights, dropout) @ _repeat_kv(v, q.shape[1])
        else:
            y = _by_kernel(q, k, v, part, scale, bias, dropout)
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
) -> Tensor:
    """What `attend` weighs values with: [B, N, T, S]; rows of queries without any key are 0."""
    whole = query.new_zeros(*query.shape[:3], key.shape[2])
    for part in mask:
        some, near = part.queries, part.keys
        bias = part.bias if scores is None else _with_scores(part, scores[..., some, near])
        weights = _softmax(query[:, :, some], key[:, :, near], part, scale, bias, soft_cap)
        if part.has_keys is not None:
            weights = weights.masked_fill(~part.has_keys, 0.0)
        whole[:, :, some, near] = weights
    return whole


def _softmax(
    query: Tensor,
    key: Tensor,
    part: MaskPart,
    scale: float,
    bias: Tensor | None,
    soft_cap: float | None,
) -> Tensor:
    """softmax(capped(Q K^T * scale) + bias), 0 where not allowed: [B, N, T, S].

    A query that may attend to nothing gets 1 / S everywhere, which its caller makes 0.

    Shape: query [B, N, T, H]; key [B, K, S, H]; bias [1 or B, N, T, S], with the limits of the
    part in it.
    """
    scores = (query * scale) @ _repeat_kv(key, query.shape[1]).transpose(-1, -2)
    if soft_cap is not None:
        scores = soft_capped(scores, soft_cap)
    if bias is not None:
        return (scores + _cast(bias, scores.dtype)).softmax(-1)
    return _limited(scores, part).softmax(-1)


def _by_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    part: MaskPart,
    scale: float,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """PyTorch's `scaled_dot_product_attention`; arguments as in `_softmax`."""
    heads, queries = query.shape[1], query.shape[2]
    is_causal = part.is_plain_causal and bias is None
    mask = part.attention_mask if bias is None else _cast(bias, query.dtype)
    mask = None if is_causal else mask
    groups = heads // key.shape[1]
    fold_groups = groups > 1 and queries == 1
    if fold_groups:  # heads with the same keys become queries of one head: keys are read once
        query = query.view(len(query), -1, groups, query.shape[3])
        if mask is not None and mask.shape[1] > 1:
            mask = mask.view(len(mask), -1, groups, mask.shape[3])
    elif groups > 1 and mask is not None and query.device.type == "cuda":
        # Kernels of a GPU that take a mask and groups keep all scores: they get repeated keys.
        key, value = _repeat_kv(key, heads), _repeat_kv(value, heads)
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


def _cast(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias in another precision; what is lowest in it stays finite in float16."""
    return (bias.clamp(min=lowest(dtype)) if dtype == torch.float16 else bias).to(dtype)


def _with_scores(part: MaskPart, scores: Tensor) -> Tensor:
    """Scores of a layer, with the limits and the bias of a part in them."""
    return _limited(scores if part.bias is None else scores + part.bias, part)


def _limited(scores: Tensor, part: MaskPart) -> Tensor:
    """Scores [B, N, T, S] that are lowest where a part allows nothing."""
    allowed = part.attention_mask
    if allowed is None and part.is_plain_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores if allowed is None else scores.masked_fill(~allowed, lowest(scores.dtype))


def _repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Keys or values repeated for the heads that share them: [B, K, S, H] -> [B, N, S, H]."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)
