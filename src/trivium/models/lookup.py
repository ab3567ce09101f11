"""Encoder-decoders that start by looking things up: neighbours, and equal tokens in the source.

A decoder first learns which tokens are frequent. That takes one direction, the same for every
token, and where nothing else says what the source is good for, the encoder learns to write that
direction and nothing else: a short run never comes back from it. So heads look at fixed distances
from the start, those of the first layers add what they find to their token, and those that look
across find the decoder's tokens, and what stands near them, in the encoder's. What is found there
is worth something at once. Nothing is fixed: all of it is trained from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivium.models.offsets import SINUSOID_BASE, distance_of_head, read_sinusoids
from trivium.nn.attention import Attention
from trivium.nn.positions import LearnedPositions, RelativeBias, relative_buckets, sinusoids

if TYPE_CHECKING:
    from trivium.models.transformer import Stack, Transformer

# How much of a neighbour is added to a token, and how far its distance's bias stands out.
_SHARE, _PEAK = 0.7, 5.0


def look_things_up(model: Transformer, embedding_std: float) -> None:
    """Change the starting weights of positions and attention in both stacks."""
    embedding = model.spec.embedding
    size = 1.0 if embedding.norm else embedding_std * embedding.scale
    for stack in model.stacks:
        _place(stack, embedding_std)
        for number, layer in enumerate(stack.layers):
            attention = layer.get_submodule("attention")
            assert isinstance(attention, Attention)
            if isinstance(stack.embedding.positions, LearnedPositions):
                attention.query.weight.zero_()
                attention.key.weight.zero_()
                read_sinusoids(attention, causal=stack.causal)
            else:
                # Keys stay random: were both zero, neither would ever have a gradient.
                attention.query.weight.zero_()
            if number == 0:
                attention.value.weight.copy_(_slices(attention.value.weight))
                written = attention.output.weight
                # Where heads are wider than the stream together, several write in one place.
                share = _SHARE * size * min(1.0, written.shape[0] / written.shape[1]) ** 0.5
                written.copy_(share * _slices(written.T).T)
            across = layer.cross_attention
            if isinstance(across, Attention):
                _find_equal_tokens(across)


def _place(stack: Stack, embedding_std: float) -> None:
    """Positions that tell a head its distance: sinusoids in as few dimensions as it reads, or
    biases with a peak."""
    positions, bias = stack.embedding.positions, stack.bias
    if isinstance(positions, LearnedPositions):
        rows, width = positions.weight.shape
        read = 2 * (stack.spec.attention_of(0).head_dim // 2)
        found = sinusoids(torch.arange(rows), SINUSOID_BASE, width)
        # Twice the tokens' size; the other dimensions are left to the tokens.
        positions.weight.zero_()
        positions.weight[:, :read] = 2.0 * 2.0**0.5 * embedding_std * found[:, :read]
        if stack.embedding.token_types is not None:
            stack.embedding.token_types.weight.zero_()
    elif isinstance(bias, RelativeBias):
        heads = bias.weight.shape[1]
        distances = torch.tensor([distance_of_head(n, causal=stack.causal) for n in range(heads)])
        buckets = relative_buckets(distances, bias.spec, bidirectional=bias.bidirectional)
        bias.weight.zero_()
        bias.weight[buckets, torch.arange(heads)] = _PEAK


def _find_equal_tokens(attention: Attention) -> None:
    """Queries and keys are the same slices, so that their products tell equal tokens.

    Values are slices too, which nothing has mixed; what becomes of them the output is to learn.
    """
    for projection in (attention.query, attention.key, attention.value):
        projection.weight.copy_(_slices(projection.weight))
    # As if divided by the root of the head's width, whatever the description's scale.
    attention.query.weight.mul_(attention.head_dim**-0.5 / attention.scale)


def _slices(weight: Tensor) -> Tensor:
    """Head n reads dimensions n H to (n + 1) H, beginning anew at the end: [N H, D]."""
    rows = torch.arange(weight.shape[0])
    found = torch.zeros_like(weight)
    found[rows, rows % weight.shape[1]] = 1.0
    return found
