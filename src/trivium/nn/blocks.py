"""The Transformer block: a mixer and a feed-forward network inside residual connections.

Shape letters: B batch, T positions, M gathered positions, D d_model.
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
    """Residual connection around a sublayer f, with norms, dropout and a multiplier m.

        post_norm(x + m dropout(post_sublayer_norm(f(pre_norm(x)))))

    Norms that are not in `norms` are left out. With `pre_norm` only, the residual stream itself is
    never normalised (GPT-2, LLaMA). `post_norm` is the norm of the original Transformer (Vaswani et
    al. 2017) and of BERT. `pre_norm` and `post_sublayer_norm` together are the sandwich norm of
    Gemma 2 (Gemma Team 2024).

    Args:
        layer: the spec that sets the kind of norm and the multiplier.
        norms: the names of the norms to apply, for example {"pre_norm"}.
        width: D, the width of the hidden states.
        dropout: the dropout rate of the sublayer's output.
    """

    def __init__(self, layer: Layer, norms: Collection[str], width: int, dropout: float) -> None:
        super().__init__()
        self.pre_norm, self.post_sublayer_norm, self.post_norm = (
            build_norm(layer.norm if place in norms else None, width)
            for place in ("pre_norm", "post_sublayer_norm", "post_norm")
        )
        self.dropout, self.multiplier = dropout, layer.residual_multiplier

    def normalize(self, x: Tensor) -> Tensor:
        """Return the input of the sublayer, pre_norm(x): [..., D] -> [..., D]."""
        return to_autocast_dtype(self.pre_norm(x))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the output y of the sublayer to the residual stream x: [..., D] -> [..., D].

        Norms, dropout and the multiplier are applied as in the formula of the class docstring.
        """
        y = F.dropout(self.post_sublayer_norm(y), self.dropout, self.training)
        return self.post_norm(x + (y if self.multiplier == 1.0 else y * self.multiplier))


class BlockKind(Choice, Part):
    """Spec of how a block connects its mixer and its feed-forward network: in series or parallel.

    Its `build` builds the module of a `Layer`.
    """

    supports_tp: ClassVar[bool] = False
    """Whether tensor parallelism can divide the block."""
    has_cross_attention: ClassVar[bool] = False
    """Whether the block can have cross-attention to an encoder's output."""
    num_residual_adds: ClassVar[int] = 2
    """The number of residual additions in a block without cross-attention."""

    @property
    def num_sublayer_inputs(self) -> int:
        """The number of different inputs of the mixer and the feed-forward network: 2 or 1.

        It is 1 if they share a norm. Used to count the activations kept for the backward pass.
        """
        return 2

    def build(self, layer: Layer, d_model: int, **options: Any) -> Block:
        """Return the module of a layer.

        Args:
            layer: the spec of the layer.
            d_model: the width of the hidden states.
            options: the keyword arguments of `Block`, such as `dropout`.
        """
        raise NotImplementedError


class SequentialLayers(BlockKind):
    """Sequential block: x + mixer(x), then x + feed_forward(x) (Vaswani et al. 2017, section 3.1).

    Norms and dropout are left out here; see `Residual`.
    """

    supports_tp: ClassVar[bool] = True
    has_cross_attention: ClassVar[bool] = True
    kind: Literal["sequential"] = "sequential"

    def build(self, layer: Layer, d_model: int, **options: Any) -> Block:
        """Return a `Block`, whose sublayers follow each other. See `BlockKind.build`."""
        return Block(layer, d_model, **options)


class ParallelLayers(BlockKind):
    """Parallel block: x + mixer(norm(x)) + feed_forward(norm(x)).

    With `norms` "shared" the mixer and the feed-forward network have the same norm (PaLM, Chowdhery
    et al. 2022). With "separate" each has its own norm (GPT-NeoX, Black et al. 2022).
    """

    num_residual_adds: ClassVar[int] = 1
    kind: Literal["parallel"] = "parallel"
    norms: Literal["shared", "separate"] = "shared"

    @property
    def num_sublayer_inputs(self) -> int:
        """The number of different sublayer inputs: 1 with a shared norm, 2 with separate norms.

        See `BlockKind.num_sublayer_inputs`.
        """
        return 1 if self.norms == "shared" else 2

    def build(self, layer: Layer, d_model: int, **options: Any) -> ParallelBlock:
        """Return a `ParallelBlock`, whose sublayers read the same x. See `BlockKind.build`."""
        return ParallelBlock(layer, d_model, **options)


NormPlacement = Literal["pre", "post", "sandwich", "post-sublayer", "none"]
_PLACEMENT_NORMS: Mapping[str, tuple[str, ...]] = {
    "pre": ("pre_norm",),
    "post": ("post_norm",),
    "sandwich": ("pre_norm", "post_sublayer_norm"),
    "post-sublayer": ("post_sublayer_norm",),
    "none": (),
}


class Layer(Part):
    """Spec of one layer (block): a mixer and a feed-forward network with residual connections.

    Args:
        mixer: the token mixer, such as attention.
        feed_forward: the feed-forward network; None: the block has only a mixer (Mamba).
        norm: the kind of norm.
        norm_placement: what is normalised in a residual connection x + f(x): the input of f with
            "pre" (GPT-2, LLaMA), the sum with "post" (BERT), the output of f with "post-sublayer"
            (OLMo 2), the input and the output of f with "sandwich" (Gemma 2), nothing with "none".
        block: how the mixer and the feed-forward network are connected: `SequentialLayers` or
            `ParallelLayers` (PaLM, GPT-NeoX).
        residual_multiplier: the factor of f(x) in the sum x + f(x) (Granite).
    """

    mixer: SerializeAsAny[Mixer]
    feed_forward: SerializeAsAny[FeedForward] | None = None
    norm: SerializeAsAny[Norm]
    norm_placement: NormPlacement
    block: SerializeAsAny[BlockKind] = SequentialLayers()
    residual_multiplier: Positive = 1.0

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of the norms in each residual connection, for example ("pre_norm",).

        They are the names of the norms in `Residual`.
        """
        return _PLACEMENT_NORMS[self.norm_placement]

    @property
    def parts(self) -> tuple[Mixer | FeedForward, ...]:
        """The specs of the mixer and, if there is one, of the feed-forward network."""
        return (self.mixer,) if self.feed_forward is None else (self.mixer, self.feed_forward)

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether no tensor shape depends on the token values, unlike in a mixture of experts.

        Then `torch.compile` can compile a whole training step.
        """
        return self.feed_forward is None or self.feed_forward.has_fixed_shapes

    @property
    def has_aux_loss(self) -> bool:
        """Whether the feed-forward network has an auxiliary loss (mixture of experts)."""
        return self.feed_forward is not None and self.feed_forward.has_aux_loss

    @property
    def reads_earlier_tokens(self) -> bool:
        """Whether the feed-forward network reads earlier tokens (RWKV) and so needs a state."""
        return self.feed_forward is not None and self.feed_forward.reads_earlier_tokens

    @property
    def sharded_fields(self) -> list[tuple[str, int]]:
        """The fields of mixer and feed-forward network that tensor parallelism shards, with values.

        The number of tensor-parallel GPUs has to divide each value. The list is empty if the layer
        does not support tensor parallelism.
        """
        if not self.block.supports_tp or not all(part.sharded_fields for part in self.parts):
            return []
        return [size for part in self.parts for size in part.sharded_fields.items()]

    def with_dropout(self, dropout: float) -> Self:
        """Return the spec with another dropout rate of the feed-forward network's hidden units.

        If the feed-forward network has no such dropout, the result equals this spec.
        """
        if self.feed_forward is None:
            return self
        return self.replace(feed_forward=self.feed_forward.with_dropout(dropout))

    def build(self, d_model: int, **options: Any) -> Block:
        """Return the module of the layer, which maps [B, T, d_model] to [B, T, d_model].

        Args:
            d_model: the width of the hidden states.
            options: the keyword arguments of `Block`: `dropout`, `num_layers`, `first_norm` and
                `has_cross_attention`.
        """
        return self.block.build(self, d_model, **options)


class Block(PartModule):
    """Module of a block: mixer, optional cross-attention, and optional feed-forward network.

    Each of these sublayers is inside a residual connection.

    Args:
        layer: the spec of the block.
        width: D, the width of the hidden states.
        dropout: the dropout rate of the sublayers' outputs and inside the mixers.
        num_layers: the number of layers in the stack. The limit on the memory for attention scores
            is divided among the layers.
        first_norm: whether the mixer has the pre-norm that `layer` specifies. False for the first
            block of a stack without a norm before the first mixer.
        has_cross_attention: whether the block has cross-attention to an encoder's output.

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
        has_cross_attention: bool = False,
    ) -> None:
        super().__init__()
        mixer, of_mixer = layer.mixer, {"dropout": dropout, "num_layers": num_layers}
        norms = layer.norms if first_norm else {*layer.norms} - {"pre_norm"}
        self.mixer: MixerModule = mixer.build(width, **of_mixer)
        self.mixer_residual = Residual(layer, norms, width, dropout)
        self.cross_attention = self.cross_residual = None
        if has_cross_attention:
            self.cross_attention = CrossAttention(mixer.cross, width, **of_mixer)
            self.cross_residual = Residual(layer, layer.norms, width, dropout)
        self.feed_forward: FeedForwardModule | None = None
        if layer.feed_forward is not None:
            self.feed_forward = layer.feed_forward.build(width)
            self.feed_forward_residual = Residual(layer, layer.norms, width, dropout)

    @property
    def inactive_experts(self) -> Iterable[nn.Module]:
        """As many experts as each token leaves unused; empty without a mixture of experts.

        See `FeedForwardModule.inactive_experts`.
        """
        return () if self.feed_forward is None else self.feed_forward.inactive_experts

    def prepare(
        self, sequence: SequenceInfo, layer: LayerContext, table: nn.Module | None = None
    ) -> tuple[Any, Any]:
        """Compute what all layers with the same mixer spec share in a forward pass.

        Returns the results of `prepare` (such as the attention mask) of the mixer and of the
        cross-attention. See `MixerModule.prepare`.
        """
        cross = self.cross_attention
        of_cross = None if cross is None else cross.prepare(sequence, layer.source)
        return self.mixer.prepare(sequence, layer.state, table), of_cross

    def forward(
        self, x: Tensor, sequence: SequenceInfo, layer: LayerContext = NO_CACHE
    ) -> tuple[Tensor, Tensor | None]:
        """Return the new hidden states, and a tensor for the auxiliary loss or None.

        The hidden states are [B, T, D], or [M, D] if `sequence.gather_positions` is set. The second
        value is the second value of `FeedForwardModule.forward`.

        Args:
            x: the hidden states [B, T, D].
            sequence: the metadata of the forward pass.
            layer: the cached state of the layer, and the result of `prepare`.
        """
        residual = self.mixer_residual
        x = residual(x, self.mixer(residual.normalize(x), sequence, layer.state, layer.prepared))
        if self.cross_attention is not None and self.cross_residual is not None:
            residual, cross = self.cross_residual, self.cross_attention
            x = residual(
                x, cross(residual.normalize(x), sequence, layer.source, layer.cross_prepared)
            )
        x = sequence.gather(x)
        if self.feed_forward is None:
            return x, None
        residual = self.feed_forward_residual
        y, loss = self.feed_forward(residual.normalize(x), sequence, layer.feed_forward_state)
        return residual(x, y), loss


class ParallelBlock(Block):
    """Module of a parallel block: x + mixer(norm(x)) + feed_forward(norm(x)).

    The mixer and the feed-forward network share a norm, or each has its own norm.

    Source: Chowdhery et al. 2022, section 2 (shared); Black et al. 2022, section 2.1 (separate).
    """

    def __init__(self, layer: Layer, width: int, *, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(layer, width, dropout=dropout, **options)
        assert isinstance(layer.block, ParallelLayers)
        self.shares_norm = layer.block.norms == "shared"
        # Both outputs are added at once, so only the mixer's residual has norms after the addition.
        before = {"pre_norm"} & {*layer.norms} if not self.shares_norm else ()
        if self.feed_forward is not None:
            self.feed_forward_residual = Residual(layer, before, width, dropout)

    def forward(
        self, x: Tensor, sequence: SequenceInfo, layer: LayerContext = NO_CACHE
    ) -> tuple[Tensor, Tensor | None]:
        """Return the new hidden states, and a tensor for the auxiliary loss or None.

        The mixer and the feed-forward network both read x, and their outputs are added to x at
        once. See `Block.forward`.
        """
        normed, gathered = self.mixer_residual.normalize(x), sequence.gather(x)
        mixed = sequence.gather(self.mixer(normed, sequence, layer.state, layer.prepared))
        if self.feed_forward is None:
            return self.mixer_residual(gathered, mixed), None
        if self.shares_norm:
            feed_forward_input = sequence.gather(normed)
        else:
            feed_forward_input = self.feed_forward_residual.normalize(gathered)
        y, loss = self.feed_forward(feed_forward_input, sequence, layer.feed_forward_state)
        return self.mixer_residual(gathered, mixed + y), loss
