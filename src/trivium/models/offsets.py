"""Attention that starts by looking at fixed distances: head 0 one token back, head 1 one ahead, ...

Keys carry sines and cosines of their position, queries those of theirs turned by a distance, so
that their product is largest that far away. Learned positions start as sinusoids for it; with
rotary ones the biases of queries and keys do it, which turn with the position by themselves.
Nothing is fixed: all of it is trained from there. A network otherwise spends most of a short run
on finding out which tokens are neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivium import spec
from trivium.nn.attention import Attention
from trivium.nn.positions import LearnedPositions, frequencies, sinusoids

if TYPE_CHECKING:
    from trivium.models.transformer import Transformer

SINUSOID_BASE = 10_000.0
# Of rotary heads: how large the biases are, and how many of the fastest frequencies have one.
_BIAS, _FREQUENCIES = 2.5, 8


def attend_to_offsets(model: Transformer, embedding_std: float) -> None:
    """Change the starting weights of queries, keys and positions of every stack."""
    for stack in model.stacks:
        positions = stack.embedding.positions
        if isinstance(positions, LearnedPositions):
            rows, width = positions.weight.shape
            # Twice the tokens' size, so that the place of a token stands out from its meaning.
            amplitude = 2.0 * 2.0**0.5 * embedding_std
            positions.weight.copy_(amplitude * sinusoids(torch.arange(rows), SINUSOID_BASE, width))
            if stack.embedding.token_types is not None:
                stack.embedding.token_types.weight.zero_()
        for i, layer in enumerate(stack.layers):
            attention = layer.get_submodule("attention")
            assert isinstance(attention, Attention)
            attention.query.weight.zero_()
            attention.key.weight.zero_()
            rotary = stack.spec.attention_of(i).positions
            if isinstance(rotary, spec.Rotary):
                _turn_biases(attention, rotary, causal=stack.causal)
            else:
                read_sinusoids(attention, causal=stack.causal)


def distance_of_head(head: int, *, causal: bool) -> int:
    """-1, -2, -3, ... where nothing later is seen, else -1, +1, -2, +2, ..."""
    return -(head + 1) if causal else (head // 2 + 1) * (-1) ** (head + 1)


def read_sinusoids(attention: Attention, *, causal: bool) -> None:
    """Change queries and keys, which are zero: head n looks at its distance."""
    pairs = attention.head_dim // 2
    frequency = frequencies(SINUSOID_BASE, attention.query.in_features)[:pairs]
    for head in attention.key.weight.unflatten(0, (-1, attention.head_dim)):
        head[: 2 * pairs, : 2 * pairs] = torch.eye(2 * pairs)
    for n, head in enumerate(attention.query.weight.unflatten(0, (-1, attention.head_dim))):
        turn = _rotation(frequency * distance_of_head(n, causal=causal))
        head[: 2 * pairs, : 2 * pairs] = turn


def _turn_biases(attention: Attention, rotary: spec.Rotary, *, causal: bool) -> None:
    half = attention.head_dim // 2
    fast = min(_FREQUENCIES, half)
    frequency = frequencies(rotary.base, attention.head_dim)[:fast]
    for head in attention.key.bias.unflatten(0, (-1, attention.head_dim)):
        head[:fast] = _BIAS
    for n, head in enumerate(attention.query.bias.unflatten(0, (-1, attention.head_dim))):
        turn = frequency * distance_of_head(n, causal=causal)
        head[:fast], head[half : half + fast] = _BIAS * turn.cos(), _BIAS * turn.sin()


def _rotation(angle: Tensor) -> Tensor:
    """The matrix that takes (sin p, cos p) of each pair to those of p + angle: [P] -> [2P, 2P]."""
    cosine, sine = angle.cos(), angle.sin()
    blocks = torch.stack((cosine, sine, -sine, cosine), -1).view(-1, 2, 2)
    return torch.block_diag(*blocks)
