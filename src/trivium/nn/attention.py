"""Multi-head attention, the only one of the house."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.nn.cache import LayerCache, Start, per_row, positions_of
from trivium.nn.compiled import written_down
from trivium.nn.inference_linear import InferenceLinear, joined
from trivium.nn.mask import Mask
from trivium.nn.picked import Picked
from trivium.nn.positions import Rotation

# Scores of one layer that the explicit product may hold: beyond it memory matters more than time.
_EXPLICIT_SCORES = 2**26
# Bytes of keys and values that a CPU reads while attention is called once.
_CALL = 2**19
# Heads with the same keys that a compiled layer asks in one loop: more have no room in registers.
_SHARING = 8


class Attention(nn.Module):
    """MultiHead(x) = Concat(softmax(Q_n K_n^T * scale) V_n) W_O.

    Keys and values come from the same x, or from a memory (cross-attention).
    Source: Vaswani et al. 2017, section 3.2; with fewer key-value heads than heads it is
    grouped-query attention (Ainslie et al. 2023). Scale is H^-0.5 unless the spec has another.
    """

    def __init__(self, attention: spec.Attention, width: int, dropout: float) -> None:
        super().__init__()
        self.head_dim, self.pattern = attention.head_dim, attention.pattern
        self.scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
        self.dropout = dropout
        self.num_heads, self.kv_heads = attention.num_heads, attention.kv_heads
        self.width = queries = attention.num_heads * attention.head_dim
        keys = attention.kv_heads * attention.head_dim
        self.query = nn.Linear(width, queries, bias=attention.bias)
        self.key = nn.Linear(width, keys, bias=attention.bias)
        self.value = nn.Linear(width, keys, bias=attention.bias)
        self.output = nn.Linear(queries, width, bias=attention.has_output_bias)
        self.joint: InferenceLinear | None = None

    def join(self, make: Callable[[Tensor, nn.Parameter | None], InferenceLinear]) -> None:
        """For inference, without a memory: one product for queries, keys and values."""
        self.joint = make(*joined((self.query, self.key, self.value)))
        del self.query, self.key, self.value

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        *,
        places: Rotation | Tensor | None = None,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
        picked: Picked | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D], or of the picked positions alone: [M, D].

        Args:
            x: what asks, and what is looked at unless there is a memory.
            mask: who may look at whom.
            places: relative positions: a rotation, or what is added to scores, [1 or B, N, T, S].
            memory: what is looked at instead of x, [B, S, D].
            cache: keys and values of all tokens so far, or of the memory.
            picked: the only positions that ask.
        """
        if memory is None:
            query, key, value = self.project(x, places, picked)
        else:
            query = self._heads(self.query(x))

            def project() -> tuple[Tensor, Tensor]:
                return self._heads(self.key(memory)), self._heads(self.value(memory))

            key, value = project() if cache is None else cache.recall(project)
            if key.shape[0] != query.shape[0]:
                query, mask = _together(query, mask, key.shape[0])
        bias = None if isinstance(places, Rotation) else places
        if cache is not None and memory is None:
            key, value, first = cache.extend(mask.start, key, value)
            if first != 0:
                mask, bias = mask.since(first), _since(bias, first, key.shape[2])
        dropout = self.dropout if self.training else 0.0
        mixed = attend(
            query.to(key.dtype),  # a cache may be more precise than the model
            key,
            value,
            mask,
            self.pattern,
            scale=self.scale,
            bias=bias,
            dropout=dropout,
            picked=picked,
        )
        if mixed.shape[0] != x.shape[0]:
            mixed = _apart(mixed, self.num_heads, x.shape[0], x.shape[1])
        mixed = mixed.to(x.dtype).transpose(1, 2).reshape(x.shape[0], -1, self.width)
        return self.output(mixed if picked is None else picked.flat(mixed))

    def project(
        self, x: Tensor, places: Rotation | Tensor | None, picked: Picked | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, N, T, H], of the picked positions alone, and keys and values [B, K, T, H].

        Queries and keys are turned already, where places are a rotation.
        """
        rotate = places if isinstance(places, Rotation) else None
        if self.joint is not None:
            heads, keys = self._heads(self.joint(x)), self.kv_heads
            both, value = heads.split_with_sizes((self.num_heads + keys, keys), 1)
            both = both if rotate is None else rotate(both)
            query, key = both.split_with_sizes((self.num_heads, keys), 1)
            return query if picked is None else picked.queries(query), key, value
        query = self._heads(self.query(x if picked is None else picked.grid(x)))
        key, value = self._heads(self.key(x)), self._heads(self.value(x))
        if rotate is not None:
            query, key = rotate(query, picked), rotate(key)
        return query, key, value

    def _heads(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = width // self.head_dim  # told, since there may be no positions
        return x.view(rows, length, heads, self.head_dim).transpose(1, 2)  # [B, N, T, H]


def _together(query: Tensor, mask: Mask, texts: int) -> tuple[Tensor, Mask]:
    """Rows side by side that look at the same text ask as heads that share its keys.

    Shape: [B * G, N, T, H] -> [B, N * G * T, 1, H] for B texts.
    """
    padding, rows = mask.padding, query.shape[0]
    if padding is not None and padding.shape[0] == rows:
        mask = replace(mask, padding=padding[:: rows // texts])
    heads = query.unflatten(0, (texts, rows // texts)).transpose(1, 2).flatten(1, 3)
    return heads[:, :, None], mask


def _apart(mixed: Tensor, heads: int, rows: int, length: int) -> Tensor:
    """What such heads have found, back in their rows: [B, N * G * T, 1, H] -> [B * G, N, T, H]."""
    texts, width = mixed.shape[0], mixed.shape[3]
    mixed = mixed.view(texts, heads, rows // texts, length, width)
    return mixed.transpose(1, 2).flatten(0, 1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    pattern: spec.Full | spec.Sliding,
    *,
    scale: float,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    picked: Picked | None = None,
) -> Tensor:
    """softmax(Q K^T * scale + bias + mask) V by the fastest way the device has.

    Shape: query [B, N, T, H]; key, value [B, K, S, H] with N a multiple of K; bias [1 or B, N, T,
    S] -> [B, N, T, H].
    """
    if mask.texts is not None and bias is None and picked is None:
        alone = Mask(mask.causal)
        texts = zip(*(x.split(mask.texts, 2) for x in (query, key, value)), strict=True)
        return torch.cat([attend(q, k, v, alone, pattern, scale=scale) for q, k, v in texts], 2)
    if not isinstance(mask.start, int) and _rows_apart(mask.start, key):
        return _attend_in_rows(query, key, value, mask, pattern, scale=scale, bias=bias)
    keys = key.shape[2]
    queries = query.shape[2] if picked is None else keys
    scores = query.shape[0] * query.shape[1] * query.shape[2] * keys
    if picked is not None and bias is not None:
        bias = picked.queries(bias)
    if query.device.type == "cpu" and torch.is_grad_enabled() and scores <= _EXPLICIT_SCORES:
        allowed = _allowed(mask, pattern, queries, keys, query.device, picked)
        return _attend_explicitly(
            query, key, value, allowed, scale=scale, bias=bias, dropout=dropout
        )
    if queries == 1 and torch.compiler.is_compiling() and not dropout:
        return _attend_by_formula(query, key, value, mask, pattern, scale=scale, bias=bias)
    if queries == 1 and query.shape[1] != key.shape[1] and picked is None and not dropout:
        return _attend_in_groups(query, key, value, mask, pattern, scale=scale, bias=bias)
    is_causal = bias is None and picked is None and mask.is_plain_causal(pattern, queries)
    allowed = None
    if not is_causal:
        allowed = _allowed(mask, pattern, queries, keys, query.device, picked)
    if bias is not None:
        bias = bias.to(query.dtype)
        allowed = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
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


def _attend_in_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    pattern: spec.Full | spec.Sliding,
    *,
    scale: float,
    bias: Tensor | None,
) -> Tensor:
    """Heads that share keys ask one after another, as the queries of one head: one read for all.

    Shape: query [B, N, 1, H] -> [B, N, 1, H] through [B, K, N / K, H].
    """
    added = mask.added(pattern, 1, key.shape[2], query.device, query.dtype)
    groups = query.shape[1] // key.shape[1]
    if bias is not None:
        bias = bias.to(query.dtype).squeeze(2).unflatten(1, (-1, groups))  # [B, K, N / K, S]
        added = bias if added is None else bias + added
    asked = query.view(len(query), key.shape[1], groups, -1)
    mixed = F.scaled_dot_product_attention(asked, key, value, attn_mask=added, scale=scale)
    return mixed.view(query.shape)


def _attend_by_formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    pattern: spec.Full | spec.Sliding,
    *,
    scale: float,
    bias: Tensor | None,
) -> Tensor:
    """The formula for one query, of which a compiler makes loops that read keys once.

    Shape: query [B, N, 1, H] -> [B, N, 1, H] through [B, K, N / K, H].
    """
    asked = query.view(query.shape[0], key.shape[1], -1, query.shape[3]) * scale
    if not isinstance(asked.shape[2], int):  # any number of texts with the same source
        scores = (written_down(asked)[:, :, :, None] * key[:, :, None]).sum(-1)
    elif asked.shape[2] <= _SHARING:  # as sums, which become one loop
        each = [(head[:, :, None] * key).sum(-1) for head in written_down(asked).unbind(2)]
        scores = torch.stack(each, 2)
    else:
        scores = asked @ key.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.view(bias.shape[0], key.shape[1], -1, key.shape[2])
    allowed = mask.allowed(pattern, 1, key.shape[2], query.device)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1) @ value).view(query.shape)


def texts_apart(device: torch.device) -> bool:
    """Whether texts of different lengths attend one by one: elsewhere launching costs more."""
    return device.type == "cpu"


def _rows_apart(starts: tuple[int, ...], key: Tensor) -> bool:
    """Whether reading what stands behind the shorter rows would take longer than a call for each.

    Shape: key [B, K, S, H].
    """
    rows, keys, _, width = key.shape
    beyond = rows * max(starts) - sum(starts)
    return texts_apart(key.device) and 2 * beyond * keys * width * key.itemsize > rows * _CALL


def _attend_in_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    pattern: spec.Full | spec.Sliding,
    *,
    scale: float,
    bias: Tensor | None,
) -> Tensor:
    """Texts of different lengths, each with its own keys alone, as if the others were not there."""
    mixed = []
    for row, start in enumerate(per_row(mask.start, len(query))):
        stop, this = start + query.shape[2], slice(row, row + 1)
        mixed.append(
            attend(
                query[this],
                key[this, :, :stop],
                value[this, :, :stop],
                mask.row(row),
                pattern,
                scale=scale,
                bias=None if bias is None else bias[this, ..., :stop],
            )
        )
    return torch.cat(mixed)


def _since(bias: Tensor | None, first: Start, keys: int) -> Tensor | None:
    """The bias of keys from the first on: [B, N, T, S]."""
    if bias is None or isinstance(first, int):
        return None if bias is None else bias[..., first:]
    places = positions_of(first, keys, bias.device).clamp(max=bias.shape[3] - 1)[:, None, None]
    return bias.expand(len(first), -1, -1, -1).take_along_dim(places, 3)


def _allowed(
    mask: Mask,
    pattern: spec.Full | spec.Sliding,
    queries: int,
    keys: int,
    device: torch.device,
    picked: Picked | None,
) -> Tensor | None:
    allowed = mask.allowed(pattern, queries, keys, device)
    return allowed if allowed is None or picked is None else picked.queries(allowed)


def _attend_explicitly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    *,
    scale: float,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """The formula as it stands. On a CPU its backward pass is 4 times faster than the kernel's."""
    if query.shape[1] != key.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query * scale) @ key.transpose(-1, -2)  # [B, N, T, S]
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return F.dropout(scores.softmax(-1), dropout) @ value
