"""Stacks of blocks, and what is before them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializeAsAny, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.blocks import Block, BlockKind, SequentialLayers
from trivium.nn.context import ALONE, Context, LayerContext
from trivium.nn.feed_forwards import Positionwise
from trivium.nn.mixers import Mixer
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import Norm, build_norm
from trivium.nn.part import Count, DropoutRate, NumLayers, Part, Positive, empty_table
from trivium.nn.positions import AbsolutePositions
from trivium.nn.state import Cache

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


class InputEmbedding(nn.Module):
    """Token vectors -> input of the first block: scale, positions, token types, norm, width."""

    def __init__(self, embedding: Embedding, width: int, dropout: float) -> None:
        super().__init__()
        self.scale, self.dropout = embedding.scale, dropout
        factorised, inner = embedding.factorised, width
        self.project_tokens = self.project_sum = None
        if factorised:
            projection = nn.Linear(factorised.width, width, bias=factorised.bias)
            if factorised.projected == "sum":
                self.project_sum, inner = projection, factorised.width
            else:
                self.project_tokens = projection
        self.positions: nn.Module | None = None
        if embedding.positions is not None:
            self.positions = embedding.positions.build(inner)
        self.token_types = None
        if embedding.num_token_types:
            self.token_types = empty_table(embedding.num_token_types, inner)
        self.query = empty_table(1, width) if embedding.query_stream else None
        self.norm = build_norm(embedding.norm, inner)

    def forward(
        self, tokens: Tensor, position_ids: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """[B, T, E] -> [B, T, D]; without token types all are of sentence A."""
        x = tokens if self.scale == 1.0 else tokens * self.scale
        if self.project_tokens is not None:
            x = self.project_tokens(x)
        if self.positions is not None:
            x = x + self.positions(position_ids).to(x.dtype)
        if self.token_types is not None:
            if token_type_ids is None or len(self.token_types.weight) == 1:
                token_type_ids = position_ids.new_zeros(1)
            x = x + self.token_types(token_type_ids)
        x = F.dropout(self.norm(x), self.dropout, self.training)
        return x if self.project_sum is None else self.project_sum(x)


class TransformerStack(nn.Module):
    """Positions, the blocks of an encoder or a decoder and, where they have one, a last norm."""

    def __init__(self, model: Any, stack: Stack, *, is_decoder: bool) -> None:
        super().__init__()
        width, crosses = model.d_model, is_decoder and model.encoder is not None
        self.spec, self.causal = stack, is_decoder
        self.embedding = InputEmbedding(model.embedding, width, stack.dropout)
        self.layers = nn.ModuleList(
            stack.block.build(stack, i, width, crosses=crosses)
            for i in range(stack.distinct_layers)
        )
        self.norm = build_norm(stack.norm if stack.ends_with_norm else None, width)
        # A table for each key that layers have in common, where their mixers have one.
        mixers = {each.mixer.table_key: each.mixer for each in self.every_layer}
        tables = {key: mixer.new_table() for key, mixer in mixers.items()}
        owned = [key for key, table in tables.items() if table is not None]
        self.tables = nn.ModuleList(table for table in tables.values() if table is not None)
        keys = [each.mixer.table_key for each in self.every_layer]
        self._table_of_layer = [owned.index(key) if key in owned else None for key in keys]
        # Layers with equal mixers: the first of them prepares for all.
        self._first_alike = [stack.mixers.index(mixer) for mixer in stack.mixers]

    @property
    def every_layer(self) -> list[Block]:
        """The block of every layer in turn: shared ones several times."""
        distinct: list[Block] = list(self.layers)  # type: ignore[assignment]
        return [distinct[self.spec.block_of(i)] for i in range(self.spec.num_layers)]

    def forward(
        self,
        tokens: Tensor,
        context: Context,
        *,
        token_type_ids: Tensor | None = None,
        late_positions: nn.Module | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Token vectors [B, T, E] -> hidden states [B, T, D], or [M, D] with `context.select`.

        Also the loss that layers add together. `late_positions` are those of a mask decoder, which
        the last layer then is; `cache` holds earlier tokens.
        """
        x, total = self.embedding(tokens, context.positions, token_type_ids), None
        # Where networks read earlier tokens all are computed; what is wanted is chosen after.
        last = None if self.spec.feed_forward.reads_earlier else self.spec.num_layers - 1
        before_last = context if context.select is None else replace(context, select=None)
        prepared: dict[int, tuple[Any, Any]] = {}
        for i, block in enumerate(self.every_layer):
            here = context if i == last else before_last
            own, first = _kept_of(i, cache), self._first_alike[i]
            if first not in prepared:
                prepared[first] = block.prepare(here, own, self._table_of(i))
            mixing, crossing = prepared[first]
            layer, runs = replace(own, prepared=mixing, cross_prepared=crossing), (here,)
            if late_positions is not None and i == last:
                runs = (replace(before_last, seen=x), replace(here, seen=x))
                x = x + late_positions(context.positions).to(x.dtype)
            for each in runs:
                x, loss = block(x, each, layer)
                if loss is not None:
                    total = loss if total is None else total + loss
        if total is not None:
            total = self.every_layer[0].feed_forward.loss(total)
        return self.norm(context.chosen(x) if last is None else x), total

    def _table_of(self, layer: int) -> nn.Module | None:
        """The table that a layer shares with others."""
        table = self._table_of_layer[layer]
        return None if table is None else self.tables[table]


def _kept_of(layer: int, cache: Cache | None) -> LayerContext:
    """What a cache keeps for a layer."""
    if cache is None:
        return ALONE
    return LayerContext(
        state=cache.states[layer],
        source=cache.sources[layer] if cache.sources else None,
        feed_forward_state=cache.feed_forward_states[layer] if cache.feed_forward_states else None,
    )
