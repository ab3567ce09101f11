"""The Transformer block: a mixer and a feed-forward network inside residual connections.

Shape letters: B batch, T positions, M selected positions, D d_model.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from trivium.choice import Choice
from trivium.nn.context import ALONE, Context, LayerContext
from trivium.nn.feed_forwards import FeedForwardModule
from trivium.nn.mixers import MixerModule
from trivium.nn.mixers.attention import CrossAttention
from trivium.nn.norm import Norm, build_norm
from trivium.nn.part import Part, PartModule, to_autocast_dtype


class Residual(nn.Module):
    """after(x + dropout(branch(f(before(x))))), for a function f.

    A norm `before` is pre-norm: the residual stream is never normalised (GPT-2, LLaMA). One
    `after` is post-norm, as first published (Vaswani et al. 2017, BERT). With `branch` and
    `before` it is the sandwich of Gemma 2 (Gemma Team 2024).

    Args:
        norm: the norm of a stack.
        norms: the places that have one.
        width: D.
        dropout: of what is added to the stream.
    """

    def __init__(self, norm: Norm, norms: Collection[str], width: int, dropout: float) -> None:
        super().__init__()
        self.before, self.branch, self.after = (
            build_norm(norm if place in norms else None, width)
            for place in ("before", "branch", "after")
        )
        self.dropout = dropout

    def enter(self, x: Tensor) -> Tensor:
        """What the function reads: [..., D] -> [..., D]."""
        return to_autocast_dtype(self.before(x))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream [..., D] with what the function made of it, y [..., D]."""
        return self.after(x + F.dropout(self.branch(y), self.dropout, self.training))


class BlockKind(Choice, Part):
    """The shape of a block: how its mixer and its feed-forward network are connected."""

    divides: ClassVar[bool] = False
    """Whether tensor parallelism can divide it."""
    crosses: ClassVar[bool] = False
    """Whether it can attend to an encoder's output, too."""
    additions: ClassVar[int] = 2
    """How many times a block without cross-attention adds to the residual stream."""

    @property
    def reads(self) -> int:
        """How many normed copies of the stream such a block makes."""
        return 2

    def build(self, stack: Any, layer: int, d_model: int, *, crosses: bool = False) -> Block:
        """Return the block of a layer of a `Stack`; one that `crosses` attends to an encoder."""
        raise NotImplementedError


class SequentialLayers(BlockKind):
    """x + mixer(x), then x + feed_forward(x) (Vaswani et al. 2017, section 3.1)."""

    divides: ClassVar[bool] = True
    crosses: ClassVar[bool] = True
    kind: Literal["sequential"] = "sequential"

    def build(self, stack: Any, layer: int, d_model: int, *, crosses: bool = False) -> Block:
        """See `BlockKind.build`."""
        return Block(stack, layer, d_model, crosses=crosses)


class ParallelLayers(BlockKind):
    """x + mixer(norm(x)) + feed_forward(norm(x)).

    With one norm for both (PaLM, Chowdhery et al. 2022) or each with its own (GPT-NeoX, Black et
    al. 2022).
    """

    additions: ClassVar[int] = 1
    kind: Literal["parallel"] = "parallel"
    norms: Literal["shared", "separate"] = "shared"

    @property
    def reads(self) -> int:
        """As `BlockKind.reads`."""
        return 1 if self.norms == "shared" else 2

    def build(
        self, stack: Any, layer: int, d_model: int, *, crosses: bool = False
    ) -> ParallelBlock:
        """See `BlockKind.build`."""
        return ParallelBlock(stack, layer, d_model, crosses=crosses)


class Block(PartModule):
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

    def __init__(self, stack: Any, layer: int, width: int, *, crosses: bool = False) -> None:
        super().__init__()
        part, norm, dropout = stack.mixer_of(layer), stack.norm, stack.dropout
        layers = stack.num_layers * (1 + crosses)
        self.mixer: MixerModule = part.build(width, dropout=dropout, num_layers=layers)
        first = stack.norms if layer or stack.first_norm else {*stack.norms} - {"before"}
        self.mixer_residual = Residual(norm, first, width, dropout)
        self.cross_attention = self.cross_residual = None
        if crosses:
            self.cross_attention = CrossAttention(part.cross, width, dropout, layers)
            self.cross_residual = Residual(norm, stack.norms, width, dropout)
        feed_forward = stack.feed_forward
        self.feed_forward: FeedForwardModule = feed_forward.build(width)
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


class ParallelBlock(Block):
    """x + mixer(norm(x)) + feed_forward(norm(x)), with one norm for both or each its own.

    Source: Chowdhery et al. 2022, section 2 (one norm); Black et al. 2022, section 2.1 (two).
    """

    def __init__(self, stack: Any, layer: int, width: int, *, crosses: bool = False) -> None:
        super().__init__(stack, layer, width)
        assert isinstance(stack.block, ParallelLayers)
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
