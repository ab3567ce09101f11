"""Stacks of blocks, and the input embedding before the first block."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.blocks import Block, Layer
from trivium.nn.mixers import Mixer
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import Norm, build_norm
from trivium.nn.part import Count, DropoutRate, NumLayers, Part, Positive, empty_embedding
from trivium.nn.positions import AbsolutePositions
from trivium.nn.sequence_info import NO_CACHE, LayerContext, SequenceInfo
from trivium.nn.state import Cache

# The most compiled variants of one kind of layer: training, evaluation and decoding, each with
# whole batches, fewer rows, shorter rows, one row and padding. PyTorch limits the variants of a
# function, and all kinds of layers share the function `Block.forward`.
_VARIANTS_PER_KIND = 16


def _layers_as_tuple(layers: Any) -> Any:
    """Return a single layer as a tuple of one layer, and any other value unchanged."""
    return (layers,) if isinstance(layers, Layer | Mapping) else layers


_Layers = Annotated[tuple[Layer, ...], BeforeValidator(_layers_as_tuple)]


class Stack(Part):
    """The configuration of `num_layers` blocks: `first_layers`, then `layers` repeated in order.

    A single layer may be given without a tuple. `num_layer_groups` is the number of groups of
    consecutive blocks that share weights (ALBERT: 1). With `first_norm` False, the first mixer of a
    pre-norm stack has no norm, because the embedding already ends with one (ModernBERT).
    `final_norm` sets whether a norm follows the last block. By default, a norm follows unless the
    last block is post-norm.
    """

    num_layers: NumLayers
    layers: Annotated[_Layers, Field(min_length=1)]
    first_layers: _Layers = ()
    num_layer_groups: Count | None = None
    first_norm: bool = True
    final_norm: bool | None = None
    dropout: DropoutRate = 0.0

    @model_validator(mode="before")
    @classmethod
    def _reject_layer_fields(cls, data: Any) -> Any:
        """Raise SpecError if a field of `Layer` is given as a field of `Stack` (version 0.2)."""
        moved = [name for name in Layer.model_fields if isinstance(data, Mapping) and name in data]
        if moved:
            raise SpecError(
                f"{moved[0]} is a field of the layers since version 0.3: set layers.{moved[0]}."
            )
        return data

    @classmethod
    def from_mixers(cls, mixer: Mixer | tuple[Mixer, ...], **fields: Any) -> Self:
        """Return a stack whose layers differ only in their mixers, which are repeated in order.

        `fields` are fields of `Stack`, and fields of `Layer` that all layers share.
        """
        shared = {name: fields.pop(name) for name in Layer.model_fields if name in fields}
        mixers = mixer if isinstance(mixer, tuple) else (mixer,)
        return cls(layers=tuple(Layer(mixer=one, **shared) for one in mixers), **fields)

    @property
    def every_layer(self) -> tuple[Layer, ...]:
        """The configuration of every layer, from the first layer to the last."""
        layers = itertools.chain(self.first_layers, itertools.cycle(self.layers))
        return tuple(itertools.islice(layers, self.num_layers))

    @property
    def num_distinct_layers(self) -> int:
        """The number of distinct blocks; a block that several layers share counts once."""
        return self.num_layer_groups or self.num_layers

    def block_index(self, layer: int) -> int:
        """Return the index, among the distinct blocks, of the block that layer `layer` uses."""
        return layer * self.num_distinct_layers // self.num_layers

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixer of every layer, from the first layer to the last."""
        return tuple(layer.mixer for layer in self.every_layer)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The mixers that are attention, from the first layer to the last."""
        return tuple(mixer for mixer in self.mixers if isinstance(mixer, Attention))

    @property
    def sharded_fields(self) -> list[tuple[str, int]]:
        """The sizes that tensor parallelism divides among GPUs, as pairs (name, size).

        The list is empty if the stack does not support tensor parallelism.
        """
        sizes = [layer.sharded_fields for layer in self.every_layer]
        return [size for each in sizes for size in each] if all(sizes) else []

    @property
    def ends_with_norm(self) -> bool:
        """Whether a norm follows the last block."""
        last = self.every_layer[-1].norm_placement
        return last != "post" if self.final_norm is None else self.final_norm

    @property
    def d_ff(self) -> int | None:
        """The hidden width of the last feed-forward network; None if it has no `d_ff`."""
        return getattr(self.every_layer[-1].feed_forward, "d_ff", None)

    def map_layers(self, change: Callable[[Layer], Layer]) -> Self:
        """Return a copy of the stack with `change` applied to the configuration of each layer."""
        return self.replace(
            layers=tuple(map(change, self.layers)),
            first_layers=tuple(map(change, self.first_layers)),
        )

    def with_layers(self, **changes: Any) -> Self:
        """Return a copy of the stack with fields of its layers or of the stack itself replaced.

        Fields of `Layer` are replaced in every layer. If `mixer` is a tuple, it creates one layer
        per mixer, with the other fields of the first layer.
        """
        of_layers = {name: changes.pop(name) for name in Layer.model_fields if name in changes}
        stack = self
        if isinstance(mixers := of_layers.get("mixer"), tuple):
            del of_layers["mixer"]
            stack = self.replace(layers=tuple(self.layers[0].replace(mixer=one) for one in mixers))
        return stack.map_layers(lambda layer: layer.replace(**of_layers)).replace(**changes)

    def with_dropout(self, dropout: float) -> Self:
        """Return a copy of the stack with this dropout rate, also in feed-forward networks."""
        changed = self.map_layers(lambda layer: layer.with_dropout(dropout))
        return changed.replace(dropout=dropout)

    def check(self) -> None:
        """Raise SpecError if there are too many first layers or groups, or shared layers differ."""
        if len(self.first_layers) > self.num_layers:
            raise SpecError(
                f"there are {len(self.first_layers)} first_layers, but num_layers="
                f"{self.num_layers}: give fewer, or a larger num_layers."
            )
        if self.num_distinct_layers > self.num_layers:
            raise SpecError(
                f"num_layer_groups={self.num_layer_groups} is more than "
                f"num_layers={self.num_layers}."
            )
        if self.num_layer_groups and (len(self.layers) > 1 or self.first_layers):
            raise SpecError(
                "layers that share weights (num_layer_groups) are alike: give one layer and no "
                "first_layers."
            )


class Factorised(Part):
    """Factorised token embeddings: they have width `width` and are projected to the model's width.

    `projected` selects what is projected: "sum", the normalised sum of token embeddings, positions
    and token types (ALBERT, ELECTRA), or "tokens", only the token embeddings, before positions are
    added (OPT 350M).
    """

    width: Count
    bias: bool = True
    projected: Literal["sum", "tokens"] = "sum"


class Embedding(Part):
    """Token embeddings times `scale`, with optional absolute positions, token types and norm.

    With `query_stream`, the embedding also has a trained vector. In XLNet's query stream, this
    vector replaces the embedding of every token that is to be predicted.
    """

    factorised: Factorised | None = None
    positions: SerializeAsAny[AbsolutePositions] | None = None
    num_token_types: Annotated[int, Field(ge=0, lt=2**31)] = 0
    query_stream: bool = False
    norm: SerializeAsAny[Norm] | None = None
    scale: Positive = 1.0

    def check(self) -> None:
        """Raise SpecError for a query stream with factorised token embeddings."""
        if self.query_stream and self.factorised:
            raise SpecError("an embedding with a query_stream has no factorised token vectors.")


class InputEmbedding(nn.Module):
    """Module of `Embedding`: computes the first block's input from token embeddings."""

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
            self.token_types = empty_embedding(embedding.num_token_types, inner)
        self.query = empty_embedding(1, width) if embedding.query_stream else None
        self.norm = build_norm(embedding.norm, inner)

    def forward(
        self, tokens: Tensor, position_ids: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the first block's input [B, T, D] from token embeddings [B, T, E].

        Token types are 0 by default.
        """
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
    """Module of an encoder or decoder: input embedding, blocks and an optional final norm."""

    def __init__(self, model: Any, stack: Stack, *, is_decoder: bool) -> None:
        super().__init__()
        width, has_cross_attention = model.d_model, is_decoder and model.encoder is not None
        self.spec, self.causal, layers = stack, is_decoder, stack.every_layer
        self.embedding = InputEmbedding(model.embedding, width, stack.dropout)
        self.layers = nn.ModuleList(
            layer.build(
                width,
                dropout=stack.dropout,
                num_layers=stack.num_layers * (1 + has_cross_attention),
                first_norm=stack.first_norm or i > 0,
                has_cross_attention=has_cross_attention,
            )
            for i, layer in enumerate(layers[: stack.num_distinct_layers])
        )
        self.norm = build_norm(layers[-1].norm if stack.ends_with_norm else None, width)
        # Layers with equal table keys share one table, if their mixers have a table.
        mixers = {each.mixer.table_key: each.mixer for each in self.every_layer}
        tables = {key: mixer.new_table() for key, mixer in mixers.items()}
        owned = [key for key, table in tables.items() if table is not None]
        self.tables = nn.ModuleList(table for table in tables.values() if table is not None)
        keys = [each.mixer.table_key for each in self.every_layer]
        self._table_index = [owned.index(key) if key in owned else None for key in keys]
        # Among layers with equal mixers, the first calls `prepare` for all. Among layers with equal
        # feed-forward networks, the network of the first computes the auxiliary loss of all.
        self._first_equal_mixer = [stack.mixers.index(mixer) for mixer in stack.mixers]
        networks = [layer.feed_forward for layer in layers]
        self._first_equal_network = [networks.index(network) for network in networks]
        self._needs_all_tokens = layers[-1].reads_earlier_tokens

    @property
    def every_layer(self) -> list[Block]:
        """The block of every layer; a block that several layers share occurs several times."""
        distinct: list[Block] = list(self.layers)  # type: ignore[assignment]
        return [distinct[self.spec.block_index(i)] for i in range(self.spec.num_layers)]

    def compile_blocks(self, **options: Any) -> None:
        """Compile every block separately (`torch.compile`), so that equal layers compile once.

        The options are those of `torch.compile`.
        """
        layers = self.spec.every_layer
        # The first layer reads the embedding, and the last layer may return some tokens only.
        kinds = {(each, i == 0, i == len(layers) - 1) for i, each in enumerate(layers)}
        config = torch._dynamo.config
        config.recompile_limit += _VARIANTS_PER_KIND * len(kinds)
        # Sizes that depend on the data (the tokens of every expert) stay inside the compiled code.
        config.capture_scalar_outputs |= not all(each.has_fixed_shapes for each in layers)
        for block in self.layers:
            block.compile(**options)

    def forward(
        self,
        tokens: Tensor,
        sequence: SequenceInfo,
        *,
        token_type_ids: Tensor | None = None,
        mask_decoder_positions: nn.Module | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return hidden states and summed auxiliary loss (or None) for token embeddings [B, T, E].

        Hidden states are [B, T, D], or [M, D] with `sequence.gather_positions`. With
        `mask_decoder_positions`, the last layer serves as DeBERTa's enhanced mask decoder (He et
        al. 2020, section 3.2, as released). It then runs twice. In the first run, its queries are
        computed from hidden states to which absolute positions were added. `cache` holds earlier
        tokens; the new tokens are appended to it.
        """
        x = self.embedding(tokens, sequence.positions, token_type_ids)
        # Only the last layer may skip tokens, and only if its feed-forward network reads no others.
        whole = replace(sequence, gather_positions=None)
        last_sequence = whole if self._needs_all_tokens else sequence
        *blocks, last = self.every_layer
        *layers, last_layer = self._layer_contexts(whole, cache)
        losses = []
        for block, layer in zip(blocks, layers, strict=True):
            x, loss = block(x, whole, layer)
            losses.append(loss)
        if mask_decoder_positions is not None:
            last_layer = replace(last_layer, prepared=replace(last_layer.prepared, source=x))
            x = x + mask_decoder_positions(whole.positions).to(x.dtype)
            x, loss = last(x, whole, last_layer)
            losses.append(loss)
        x, loss = last(x, last_sequence, last_layer)
        losses.append(loss)
        if cache is not None and sequence.cache_slice is not None:
            cache.end_pass(sequence.cache_slice)
        x = self.norm(sequence.gather(x) if self._needs_all_tokens else x)
        return x, self._auxiliary_loss(losses)

    def _layer_contexts(self, sequence: SequenceInfo, cache: Cache | None) -> list[LayerContext]:
        """Return the `LayerContext` of every layer; equal mixers share one call of `prepare`."""
        contexts: list[LayerContext] = []
        for i, block in enumerate(self.every_layer):
            layer, first = _cached_context(i, cache), self._first_equal_mixer[i]
            if first == i:
                mixing, crossing = block.prepare(sequence, layer, self._shared_table(i))
            else:
                mixing, crossing = contexts[first].prepared, contexts[first].cross_prepared
            contexts.append(replace(layer, prepared=mixing, cross_prepared=crossing))
        return contexts

    def _auxiliary_loss(self, losses: Sequence[Tensor | None]) -> Tensor | None:
        """Return the sum of the auxiliary losses of all layers; None if no layer has one."""
        added: dict[int, Tensor] = {}
        for run, loss in enumerate(losses):
            network = self._first_equal_network[min(run, self.spec.num_layers - 1)]
            if loss is not None:
                added[network] = loss + added[network] if network in added else loss
        total = None
        for i, one in added.items():
            network = self.every_layer[i].feed_forward
            assert network is not None
            total = network.loss(one) if total is None else total + network.loss(one)
        return total

    def _shared_table(self, layer: int) -> nn.Module | None:
        """Return the table that a layer shares with others (T5's position biases), or None."""
        table = self._table_index[layer]
        return None if table is None else self.tables[table]


def _cached_context(layer: int, cache: Cache | None) -> LayerContext:
    """Return the `LayerContext` with the cached states of a layer; `NO_CACHE` if uncached."""
    if cache is None:
        return NO_CACHE
    return LayerContext(
        state=cache.states[layer],
        source=cache.cross_caches[layer] if cache.cross_caches else None,
        feed_forward_state=cache.feed_forward_states[layer] if cache.feed_forward_states else None,
    )
