"""The Transformer block: a mixer and a feed-forward network inside residual connections.

Shape letters: B batch, T positions, M selected positions, D d_model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import SerializeAsAny
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.choice import Choice
from trivium.nn.feed_forwards import FeedForward, FeedForwardModule
from trivium.nn.mixers import Mixer, MixerModule
from trivium.nn.mixers.attention import CrossAttention
from trivium.nn.norm import Norm, build_norm
from trivium.nn.part import Part, PartModule, Positive, to_autocast_dtype
from trivium.nn.sequence_info import NO_CACHE, LayerContext, SequenceInfo


class Residual(nn.Module):
    """after(x + m dropout(branch(f(before(x))))), for a function f and a multiplier m.

    A norm `before` is pre-norm: the residual stream is never normalised (GPT-2, LLaMA). One
    `after` is post-norm, as first published (Vaswani et al. 2017, BERT). With `branch` and
    `before` it is the sandwich of Gemma 2 (Gemma Team 2024).

    Args:
        layer: whose norm and multiplier it has.
        norms: the places that have one.
        width: D.
        dropout: of what is added to the stream.
    """

    def __init__(self, layer: Layer, norms: Collection[str], width: int, dropout: float) -> None:
        super().__init__()
        self.pre_norm, self.post_sublayer_norm, self.post_norm = (
            build_norm(layer.norm if place in norms else None, width)
            for place in ("pre_norm", "post_sublayer_norm", "post_norm")
        )
        self.dropout, self.multiplier = dropout, layer.residual_multiplier

    def sublayer_input(self, x: Tensor) -> Tensor:
        """What the function reads: [..., D] -> [..., D]."""
        return to_autocast_dtype(self.pre_norm(x))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream [..., D] with what the function made of it, y [..., D]."""
        y = F.dropout(self.post_sublayer_norm(y), self.dropout, self.training)
        return self.post_norm(x + (y if self.multiplier == 1.0 else y * self.multiplier))


class BlockKind(Choice, Part):
    """The shape of a block: how its mixer and its feed-forward network are connected."""

    supports_tp: ClassVar[bool] = False
    """Whether tensor parallelism can divide it."""
    crosses: ClassVar[bool] = False
    """Whether it can attend to an encoder's output, too."""
    additions: ClassVar[int] = 2
    """How many times a block without cross-attention adds to the residual stream."""

    @property
    def reads(self) -> int:
        """How many normed copies of the stream such a block makes."""
        return 2

    def build(self, layer: Layer, d_model: int, **options: Any) -> Block:
        """Return the module of a layer; the options are those of `Block`."""
        raise NotImplementedError


class SequentialLayers(BlockKind):
    """x + mixer(x), then x + feed_forward(x) (Vaswani et al. 2017, section 3.1)."""

    supports_tp: ClassVar[bool] = True
    crosses: ClassVar[bool] = True
    kind: Literal["sequential"] = "sequential"

    def build(self, layer: Layer, d_model: int, **options: Any) -> Block:
        """See `BlockKind.build`."""
        return Block(layer, d_model, **options)


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

    def build(self, layer: Layer, d_model: int, **options: Any) -> ParallelBlock:
        """See `BlockKind.build`."""
        return ParallelBlock(layer, d_model, **options)


NormPlacement = Literal["pre", "post", "sandwich", "post-sublayer", "none"]
_PLACES: Mapping[str, tuple[str, ...]] = {
    "pre": ("pre_norm",),
    "post": ("post_norm",),
    "sandwich": ("pre_norm", "post_sublayer_norm"),
    "post-sublayer": ("post_sublayer_norm",),
    "none": (),
}


class Layer(Part):
    """One block: a mixer and a feed-forward network, each inside a residual connection.

    `norm_placement` says where a residual connection x + f(x) has norms: "pre" norm(x) is read
    (GPT-2, LLaMA), "post" the sum is normalised (BERT), "post-sublayer" what f adds (OLMo 2),
    "sandwich" what f reads and what f adds (Gemma 2), "none" nothing. Without a `feed_forward` a
    block is its mixer alone (Mamba). What is added to the residual stream is multiplied by
    `residual_multiplier` (Granite).
    """

    mixer: SerializeAsAny[Mixer]
    feed_forward: SerializeAsAny[FeedForward] | None = None
    norm: SerializeAsAny[Norm]
    norm_placement: NormPlacement
    block: SerializeAsAny[BlockKind] = SequentialLayers()
    residual_multiplier: Positive = 1.0

    @property
    def norms(self) -> tuple[str, ...]:
        """The norms of a residual connection, by their names in `Residual`."""
        return _PLACES[self.norm_placement]

    @property
    def parts(self) -> tuple[Mixer | FeedForward, ...]:
        """The mixer, and the feed-forward network if there is one."""
        return (self.mixer,) if self.feed_forward is None else (self.mixer, self.feed_forward)

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether no shape depends on the tokens, so that a whole step can be compiled."""
        return self.feed_forward is None or self.feed_forward.has_fixed_shapes

    @property
    def adds_loss(self) -> bool:
        """Whether its feed-forward network has a loss of its own."""
        return self.feed_forward is not None and self.feed_forward.adds_loss

    @property
    def reads_earlier(self) -> bool:
        """Whether its feed-forward network reads earlier tokens."""
        return self.feed_forward is not None and self.feed_forward.reads_earlier

    @property
    def tp_sizes(self) -> list[tuple[str, int]]:
        """Sizes that tensor parallelism divides, by name; none if it cannot divide the layer."""
        if not self.block.supports_tp or not all(part.tp_sizes for part in self.parts):
            return []
        return [size for part in self.parts for size in part.tp_sizes.items()]

    def with_dropout(self, dropout: float) -> Self:
        """The same layer with this dropout of hidden units, if its network has such dropout."""
        if self.feed_forward is None:
            return self
        return self.replace(feed_forward=self.feed_forward.with_dropout(dropout))

    def build(self, d_model: int, **options: Any) -> Block:
        """Return the module, which maps [B, T, d_model] to [B, T, d_model].

        The options are those of `Block`: dropout, num_layers, first_norm, crosses.
        """
        return self.block.build(self, d_model, **options)


class Block(PartModule):
    """Mixer, cross-attention where it `crosses`, and feed-forward network.

    Each is inside a residual connection.

    Args:
        layer: the configuration.
        width: of the vectors, D.
        dropout: of what is added to the residual stream, and of the mixer, while training.
        num_layers: of the stack, for mixers that keep much for the backward pass.
        first_norm: whether the mixer of a pre-norm block has its norm.
        crosses: whether the block attends to an encoder's output, too.

    >>> import torch
    >>> from trivium import spec
    >>> layer = spec.Layer(
    ...     mixer=spec.Attention(num_heads=2, head_dim=4), norm=spec.LayerNorm(),
    ...     feed_forward=spec.MLP(d_ff=16, activation="gelu"), norm_placement="pre")
    >>> x, loss = layer.build(8)(torch.zeros(3, 5, 8), SequenceInfo.of_length(5, causal=True))
    >>> x.shape, loss
    (torch.Size([3, 5, 8]), None)
    """

    def __init__(
        self,
        layer: Layer,
        width: int,
        *,
        dropout: float = 0.0,
        num_layers: int = 1,
        first_norm: bool = True,
        crosses: bool = False,
    ) -> None:
        super().__init__()
        mixer, of_mixer = layer.mixer, {"dropout": dropout, "num_layers": num_layers}
        norms = layer.norms if first_norm else {*layer.norms} - {"pre_norm"}
        self.mixer: MixerModule = mixer.build(width, **of_mixer)
        self.mixer_residual = Residual(layer, norms, width, dropout)
        self.cross_attention = self.cross_residual = None
        if crosses:
            self.cross_attention = CrossAttention(mixer.cross, width, **of_mixer)
            self.cross_residual = Residual(layer, layer.norms, width, dropout)
        self.feed_forward: FeedForwardModule | None = None
        if layer.feed_forward is not None:
            self.feed_forward = layer.feed_forward.build(width)
            self.feed_forward_residual = Residual(layer, layer.norms, width, dropout)

    @property
    def inactive_experts(self) -> Iterable[nn.Module]:
        """See `FeedForwardModule.inactive_experts`."""
        return () if self.feed_forward is None else self.feed_forward.inactive_experts

    def prepare(
        self, sequence: SequenceInfo, layer: LayerContext, table: nn.Module | None = None
    ) -> tuple[Any, Any]:
        """What layers with an equal mixer share in a pass: of the mixer, and of cross-attention."""
        cross = self.cross_attention
        of_cross = None if cross is None else cross.prepare(sequence, layer.source)
        return self.mixer.prepare(sequence, layer.state, table), of_cross

    def forward(
        self, x: Tensor, sequence: SequenceInfo, layer: LayerContext = NO_CACHE
    ) -> tuple[Tensor, Tensor | None]:
        """Map [B, T, D] to [B, T, D], or [M, D] with `gather_positions`; and an auxiliary loss."""
        residual = self.mixer_residual
        x = residual(
            x, self.mixer(residual.sublayer_input(x), sequence, layer.state, layer.prepared)
        )
        if self.cross_attention is not None and self.cross_residual is not None:
            residual, cross = self.cross_residual, self.cross_attention
            x = residual(
                x, cross(residual.sublayer_input(x), sequence, layer.source, layer.cross_prepared)
            )
        x = sequence.gather(x)
        if self.feed_forward is None:
            return x, None
        residual = self.feed_forward_residual
        y, loss = self.feed_forward(residual.sublayer_input(x), sequence, layer.feed_forward_state)
        return residual(x, y), loss


class ParallelBlock(Block):
    """x + mixer(norm(x)) + feed_forward(norm(x)), with one norm for both or each its own.

    Source: Chowdhery et al. 2022, section 2 (one norm); Black et al. 2022, section 2.1 (two).
    """

    def __init__(self, layer: Layer, width: int, *, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(layer, width, dropout=dropout, **options)
        assert isinstance(layer.block, ParallelLayers)
        self.shares_norm = layer.block.norms == "shared"
        # Both are added at once: the norms on the branch and after are the mixer's.
        before = {"pre_norm"} & {*layer.norms} if not self.shares_norm else ()
        if self.feed_forward is not None:
            self.feed_forward_residual = Residual(layer, before, width, dropout)

    def forward(
        self, x: Tensor, sequence: SequenceInfo, layer: LayerContext = NO_CACHE
    ) -> tuple[Tensor, Tensor | None]:
        """As `Block.forward`."""
        mixing = self.mixer_residual
        entered, chosen = mixing.sublayer_input(x), sequence.gather(x)
        mixed = sequence.gather(self.mixer(entered, sequence, layer.state, layer.prepared))
        if self.feed_forward is None:
            return mixing(chosen, mixed), None
        feeding = self.feed_forward_residual
        read = sequence.gather(entered) if self.shares_norm else feeding.sublayer_input(chosen)
        y, loss = self.feed_forward(read, sequence, layer.feed_forward_state)
        return mixing(chosen, mixed + y), loss
