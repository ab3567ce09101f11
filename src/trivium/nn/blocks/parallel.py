"""Blocks whose mixer and feed-forward network read the same stream.

Shape letters: B batch, T positions, M selected positions, D d_model.
"""

from __future__ import annotations

from torch import Tensor

from trivium import spec
from trivium.nn.blocks.sequential import Block
from trivium.nn.context import ALONE, Context, LayerContext
from trivium.nn.residual import Residual


class ParallelBlock(Block, of=spec.ParallelLayers):
    """x + mixer(norm(x)) + feed_forward(norm(x)), with one norm for both or each its own.

    Source: Chowdhery et al. 2022, section 2 (one norm); Black et al. 2022, section 2.1 (two).
    """

    def __init__(self, stack: spec.Stack, layer: int, width: int, *, crosses: bool = False) -> None:
        super().__init__(stack, layer, width)
        assert isinstance(stack.block, spec.ParallelLayers)
        self.shares_norm = stack.block.norms == "shared"
        # Both are added at once: the norms on the branch and after are the mixer's.
        before = {"before"} & {*stack.feed_forward_norms} if not self.shares_norm else ()
        self.feed_forward_residual = Residual(stack.norm, before, width, stack.dropout)

    def forward(
        self, x: Tensor, context: Context, layer: LayerContext = ALONE
    ) -> tuple[Tensor, Tensor | None]:
        """As `Block.forward`."""
        mixing, feeding = self.mixer_residual, self.feed_forward_residual
        entered, chosen = mixing.enter(x), context.chosen(x)
        mixed = context.chosen(self.mixer(entered, context, layer.state, layer.prepared))
        read = context.chosen(entered) if self.shares_norm else feeding.enter(chosen)
        y, loss = self.feed_forward(read, context, layer.feed_forward_state)
        return mixing(chosen, mixed + y), loss
