"""A linear recurrence over the tokens of a row, many steps at a time.

Shape letters: B batch, T positions, G chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 32
"""Positions of a chunk."""


def scan(decay: Tensor, inputs: Tensor, before: Tensor) -> Tensor:
    """h_t = decay_t * h_(t-1) + inputs_t, with h_(-1) = before: all h_t.

    Chunks are computed side by side, position after position, as if nothing were before them; then
    what is before a chunk is added, times the product of the decays since. Products and sums alone:
    with decays of at most 1 nothing overflows.

    Shape: decay, inputs [B, T, ...]; before [B, ...] -> [B, T, ...].
    """
    length = inputs.shape[1]
    size = min(CHUNK, length)
    padding = (0, 0) * (inputs.ndim - 2) + (0, -length % size)
    decays = F.pad(decay, padding, value=1.0).unflatten(1, (-1, size)).unbind(2)
    new = F.pad(inputs, padding).unflatten(1, (-1, size)).unbind(2)  # of [B, G, ...]
    states, products = [new[0]], [decays[0]]
    for now, x in zip(decays[1:], new[1:], strict=True):
        states.append(torch.addcmul(x, now, states[-1]))
        products.append(now * products[-1])
    entering = [before]
    ends = zip(products[-1].unbind(1), states[-1].unbind(1), strict=True)
    for product, state in [*ends][:-1]:
        entering.append(torch.addcmul(state, product, entering[-1]))
    earlier = torch.stack(entering, 1)[:, :, None]
    whole = torch.addcmul(torch.stack(states, 2), torch.stack(products, 2), earlier)
    return whole.flatten(1, 2)[:, :length]
