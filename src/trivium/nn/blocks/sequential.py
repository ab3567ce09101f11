"""The Transformer block: a mixer and a feed-forward network inside residual connections.

Shape letters: B batch, T positions, M selected positions, D d_model.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trivium import spec
from trivium.nn.context import ALONE, Context, LayerContext
from trivium.nn.feed_forwards import FeedForwardModule
from trivium.nn.mixers import MixerModule
from trivium.nn.mixers.attention import CrossAttention
from trivium.nn.part_module import PartModule, module_class
from trivium.nn.residual import Residual


class Block(PartModule, of=spec.SequentialLayers):
    """Mixer, cross-attention where it `crosses`, and feed-forward network.

    Each is inside a residual connection.

    >>> import torch
    >>> from trivium import spec
    >>> stack = spec.Stack(
    ...     num_layers=1, mixer=spec.Attention(num_heads=2, head_dim=4), norm=spec.LayerNorm(),
    ...     feed_forward=spec.FeedForward(d_ff=16, activation="gelu"), norms=("before",))
    >>> x, loss = Block(stack, layer=0, width=8)(
    ...     torch.zeros(3, 5, 8), Context.of_length(5, causal=True))
    >>> x.shape, loss
    (torch.Size([3, 5, 8]), None)
    """

    def __init__(self, stack: spec.Stack, layer: int, width: int, *, crosses: bool = False) -> None:
        super().__init__()
        part, norm, dropout = stack.mixer_of(layer), stack.norm, stack.dropout
        layers = stack.num_layers * (1 + crosses)
        self.mixer: MixerModule = module_class(part)(part, width, dropout, layers)
        first = stack.norms if layer or stack.first_norm else {*stack.norms} - {"before"}
        self.mixer_residual = Residual(norm, first, width, dropout)
        self.cross_attention = self.cross_residual = None
        if crosses:
            self.cross_attention = CrossAttention(part.cross, width, dropout, layers)
            self.cross_residual = Residual(norm, stack.norms, width, dropout)
        feed_forward = stack.feed_forward
        self.feed_forward: FeedForwardModule = module_class(feed_forward)(feed_forward, width)
        self.feed_forward_residual = Residual(norm, stack.feed_forward_norms, width, dropout)

    def prepare(
        self, context: Context, layer: LayerContext, table: nn.Module | None = None
    ) -> tuple[Any, Any]:
        """What layers with an equal mixer share in a pass: of the mixer, and of cross-attention."""
        cross = self.cross_attention
        of_cross = None if cross is None else cross.prepare(context, layer.source)
        return self.mixer.prepare(context, layer.state, table), of_cross

    def forward(
        self, x: Tensor, context: Context, layer: LayerContext = ALONE
    ) -> tuple[Tensor, Tensor | None]:
        """[B, T, D] -> [B, T, D], or with `select` [M, D]; and a loss, if the layer has one."""
        residual = self.mixer_residual
        x = residual(x, self.mixer(residual.enter(x), context, layer.state, layer.prepared))
        if self.cross_attention is not None and self.cross_residual is not None:
            residual, cross = self.cross_residual, self.cross_attention
            x = residual(x, cross(residual.enter(x), context, layer.source, layer.cross_prepared))
        x, residual = context.chosen(x), self.feed_forward_residual
        y, loss = self.feed_forward(residual.enter(x), context, layer.feed_forward_state)
        return residual(x, y), loss
