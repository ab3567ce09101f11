"""Stacks of blocks, and what is before them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SerializeAsAny, field_validator

from trivium.errors import SpecError
from trivium.spec.blocks import BlockKind
from trivium.spec.blocks.sequential import SequentialLayers
from trivium.spec.feed_forwards import Positionwise
from trivium.spec.mixers import Mixer
from trivium.spec.mixers.attention import Attention
from trivium.spec.norms import Norm
from trivium.spec.part import Count, DropoutRate, NumLayers, Part, Positive
from trivium.spec.positions import AbsolutePositions

Norms = tuple[Literal["before", "branch", "after"], ...]
"""Where a residual connection has a norm; see `Stack`."""
PRE_NORM: Norms = ("before",)
POST_NORM: Norms = ("after",)


class Stack(Part):
    """`num_layers` blocks; a tuple of mixers is repeated over the layers.

    `norms` says where a residual connection has one: "before" its function (pre-norm, GPT-2),
    "branch", on what the function adds (with "before" the sandwich of Gemma 2), "after" the sum
    (post-norm, BERT); with () none has. With `num_distinct` the blocks share weights in that many
    runs of neighbours (ALBERT: 1). `first_norm` False: the first mixer of a pre-norm stack has no
    norm before it, since the embedding ends with one (ModernBERT). `last_norm`: whether a norm is
    after the last block; unless set where the blocks do not end with one.
    """

    num_layers: NumLayers
    num_distinct: Count | None = None
    mixer: SerializeAsAny[Mixer] | Annotated[tuple[SerializeAsAny[Mixer], ...], Field(min_length=1)]
    feed_forward: SerializeAsAny[Positionwise]
    norm: Norm
    norms: Norms
    block: SerializeAsAny[BlockKind] = SequentialLayers()
    first_norm: bool = True
    last_norm: bool | None = None
    dropout: DropoutRate = 0.0

    @property
    def distinct_layers(self) -> int:
        """Blocks with weights of their own."""
        return self.num_distinct or self.num_layers

    def block_of(self, layer: int) -> int:
        """Which of the distinct blocks layer `layer` is."""
        return layer * self.distinct_layers // self.num_layers

    def mixer_of(self, layer: int) -> Mixer:
        """The mixer of layer `layer`, counted from 0."""
        if isinstance(self.mixer, Mixer):
            return self.mixer
        return self.mixer[layer % len(self.mixer)]

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixer of every layer in turn."""
        return tuple(self.mixer_of(layer) for layer in range(self.num_layers))

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Those of the mixers that are attention."""
        return tuple(mixer for mixer in self.mixers if isinstance(mixer, Attention))

    @property
    def divided(self) -> list[tuple[str, int]]:
        """Sizes that tensor parallelism divides, by name; none where it cannot divide the stack."""
        parts = [*self.mixers, self.feed_forward]
        if not self.block.divides or not all(part.divided for part in parts):
            return []
        return [size for part in parts for size in part.divided.items()]

    @property
    def ends_with_norm(self) -> bool:
        """Whether a norm is after the last block."""
        return "after" not in self.norms if self.last_norm is None else self.last_norm

    def with_dropout(self, dropout: float) -> Self:
        """The same with this dropout, also of hidden units where the network has such."""
        return self.replace(dropout=dropout, feed_forward=self.feed_forward.with_dropout(dropout))

    @property
    def feed_forward_norms(self) -> Norms:
        """`norms` of the feed-forward network, where there is one."""
        return self.norms if self.feed_forward.computes else ()

    @property
    def d_ff(self) -> int | None:
        """Hidden units of the feed-forward network, where it has a number of them."""
        return getattr(self.feed_forward, "d_ff", None)

    @field_validator("norms")
    @classmethod
    def _each_place_once(cls, norms: Norms) -> Norms:
        if len(set(norms)) < len(norms):
            raise SpecError(f"{[*norms]}: a place has one norm, name it once.")
        return norms

    def check(self) -> None:
        """Raise SpecError for more distinct blocks than layers, and for shared ones that differ."""
        if self.distinct_layers > self.num_layers:
            raise SpecError(
                f"num_distinct={self.num_distinct} is more than num_layers={self.num_layers}."
            )
        if self.num_distinct and not isinstance(self.mixer, Mixer):
            raise SpecError(
                "layers that share weights (num_distinct) have one mixer: give no tuple."
            )


class Factorised(Part):
    """Token vectors of another width than the model's, and a matrix between the two.

    `projected` is what that matrix projects: the normalised sum of tokens, positions and types
    (ALBERT, ELECTRA), or the token vectors alone, before positions are added (OPT 350M).
    """

    width: Count
    bias: bool = True
    projected: Literal["sum", "tokens"] = "sum"


class Embedding(Part):
    """Token vectors times `scale`; positions, token types and a norm where a family has them.

    With a `query_stream` it has a vector that stands in the place of a token to be predicted, from
    tokens that are known before it in any order (XLNet).
    """

    factorised: Factorised | None = None
    positions: SerializeAsAny[AbsolutePositions] | None = None
    num_token_types: Annotated[int, Field(ge=0, lt=2**31)] = 0
    query_stream: bool = False
    norm: Norm | None = None
    scale: Positive = 1.0

    def check(self) -> None:
        """Raise SpecError for query vectors that are not as wide as the model."""
        if self.query_stream and self.factorised:
            raise SpecError("an embedding with a query_stream has no factorised token vectors.")
