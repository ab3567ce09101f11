"""Where training starts: the weights a spec's `Initialization` draws from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivium import spec
from trivium.models.heads import MLMHead
from trivium.nn.attention import Attention
from trivium.nn.positions import LearnedPositions, frequencies, sinusoids

if TYPE_CHECKING:
    from trivium.models.transformer import Transformer


@torch.no_grad()
def initialize(model: Transformer, seed: int) -> None:
    """Draw the starting weights of a spec from a seed, the same on every device."""
    start, generator = model.spec.initialization, torch.Generator().manual_seed(seed)
    layers = sum(stack.num_layers for stack in model.spec.stacks)
    branch_std = {
        "full": start.std,
        "scaled": start.std / (2 * layers) ** 0.5,
        "zero": 0.0,
    }[start.branches]
    embedding = set(model.embedding.parameters()) - set(model.embedding.norm.parameters())
    for name, weight in model.named_parameters():
        if weight in embedding:
            std = start.embedding_std
        elif name.endswith(("attention.output.weight", "feed_forward.down.weight")):
            std = branch_std
        elif weight.ndim > 1:
            std = start.std
        else:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))
    if start.branches == "zero":
        for head in model.heads.values():
            if isinstance(head, MLMHead):
                head.start_as_identity()
    if start.attention == "offsets":
        _attend_to_offsets(model)


def _attend_to_offsets(model: Transformer) -> None:
    """Positions start as sinusoids and every head looks at one fixed distance.

    A key reads the fast sinusoids of its position, a query those of its own turned by the
    distance, so that their product is largest that far away. Nothing is fixed: all of it is
    trained from there. A network with learned positions otherwise spends most of a short run
    on finding out which tokens are neighbours.
    """
    positions = model.embedding.positions
    assert isinstance(positions, LearnedPositions)  # the spec allows nothing else
    count, width = positions.weight.shape
    # Twice the tokens' size, so that the place of a token stands out from its meaning.
    amplitude = 2.0 * 2.0**0.5 * model.spec.initialization.embedding_std
    positions.weight.copy_(amplitude * sinusoids(torch.arange(count), _BASE, width))
    if model.embedding.token_types is not None:
        model.embedding.token_types.weight.zero_()
    for layer in model.stack.layers:
        for module in layer.modules():
            if isinstance(module, Attention):
                causal = model.spec.decoder is not None
                _look_at_offsets(module, width, causal=causal)


_BASE = 10_000.0


def _look_at_offsets(attention: Attention, width: int, *, causal: bool) -> None:
    query, key = attention.query.weight.zero_(), attention.key.weight.zero_()  # [N * H, D]
    pairs = attention.head_dim // 2
    frequency = frequencies(_BASE, width)[:pairs]
    for head in key.unflatten(0, (-1, attention.head_dim)):
        head[: 2 * pairs, : 2 * pairs] = torch.eye(2 * pairs)
    for n, head in enumerate(query.unflatten(0, (-1, attention.head_dim))):
        # -1, -2, -3, ... where nothing later is seen, else -1, +1, -2, +2, ...
        distance = -(n + 1) if causal else (n // 2 + 1) * (-1) ** (n + 1)
        head[: 2 * pairs, : 2 * pairs] = _rotation(frequency * distance)


def _rotation(angle: Tensor) -> Tensor:
    """The matrix that takes (sin p, cos p) of each pair to those of p + angle: [P] -> [2P, 2P]."""
    cosine, sine = angle.cos(), angle.sin()
    blocks = torch.stack((cosine, sine, -sine, cosine), -1).view(-1, 2, 2)
    return torch.block_diag(*blocks)
