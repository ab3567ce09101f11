"""Sampling of the next token from processed logits [B, V], by small functions that compose.

The logit of an excluded token is set to minus infinity. Shape letters: B texts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trivium.inference.sampling_params import SamplingParams

_TOP_P_CANDIDATES = 256  # Top-p sorts only this many candidates, unless more are needed.


def sample_tokens(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> Tensor:
    """Sample the next token of every row, int64 [B], from logits [B, V].

    Penalties and biases must already be applied to the logits. If the sampling parameters of a row
    are greedy, its most probable token is taken.

    Args:
        params: the sampling parameters of each row; rows with the same temperature and filters
            are sampled in one call.
        uniforms: one random number in [0, 1) per row, from the row's own generator, so that a
            text does not depend on the other rows.
    """
    groups: dict[Any, list[int]] = {}
    for row, one in enumerate(params):
        key = one.temperature, *(getattr(one, name) for name in LOGITS_FILTERS)
        groups.setdefault(key, []).append(row)
    token_ids = torch.empty(len(params), dtype=torch.int64, device=logits.device)
    for rows in groups.values():
        some, one = logits if len(groups) == 1 else logits[rows], params[rows[0]]
        if one.greedy:
            token_ids[rows] = some.argmax(-1)
        else:
            probabilities = filter_logits(some, one).softmax(-1)
            token_ids[rows] = sample(probabilities, [uniforms[row] for row in rows])
    return token_ids


def filter_logits(logits: Tensor, params: SamplingParams) -> Tensor:
    """Divide logits by the temperature, then apply top-k, top-p and min-p: [B, V] -> [B, V]."""
    logits = logits / params.temperature
    for name, keep in LOGITS_FILTERS.items():
        value = getattr(params, name)
        if value is not None:
            logits = keep(logits, value)
    return logits


def sample(probabilities: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Sample one token per row by inverse transform sampling: [B, V] -> int64 [B].

    `uniforms` are random numbers in [0, 1), one per row.
    """
    # Apple's GPUs have no float64.
    dtype = torch.float32 if probabilities.device.type == "mps" else torch.float64
    cumulative = probabilities.to(dtype).cumsum(-1)
    uniform = torch.tensor(uniforms, dtype=dtype, device=probabilities.device)[:, None]
    index = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
    return index.clamp(max=probabilities.shape[-1] - 1)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Exclude tokens whose logit is below the k-th largest of the row: [B, V] -> [B, V]."""
    smallest = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < smallest, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Exclude tokens outside the smallest set whose probabilities sum to at least p (top-p).

    Source: Holtzman et al. 2020, equation 2 (nucleus sampling).
    """
    # Sorting 50,000 logits takes longer than the forward pass of a small model.
    count = min(_TOP_P_CANDIDATES, logits.shape[-1])
    logsumexp = logits.logsumexp(-1, keepdim=True)
    best = logits.topk(count).values
    if bool(((best - logsumexp).exp().sum(-1) < p).any()):
        best = logits.sort(descending=True).values
    probabilities = (best - logsumexp).exp()
    before = probabilities.cumsum(-1) - probabilities
    smallest = best.masked_fill(before >= p, torch.inf).amin(-1, keepdim=True)
    return logits.masked_fill(logits < smallest, -torch.inf)


def keep_min_p(logits: Tensor, fraction: float) -> Tensor:
    """Exclude tokens that are less than `fraction` times as probable as the most probable token.

    Source: Nguyen et al. 2024.
    """
    probabilities = logits.softmax(-1)
    smallest = fraction * probabilities.amax(-1, keepdim=True)
    return logits.masked_fill(probabilities < smallest, -torch.inf)


LOGITS_FILTERS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "top_k": keep_top_k,
    "top_p": keep_top_p,
    "min_p": keep_min_p,
}
"""Field of `SamplingParams` -> its filter, in the order of application (None: no filter)."""
